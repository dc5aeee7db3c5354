// Mixtures of experts in calibrated recipes: experts share transforms, each is quantised for the tokens that
// reach it, and those that too few reach are listed.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "checkpoint/artifact.h"
#include "engine/engine.h"
#include "model/checkpoint.h"
#include "quant/journal.h"
#include "quant/pipeline.h"
#include "quant/reference.h"
#include "support/logits.h"
#include "support/tiny_models.h"

namespace quatrain {
namespace {

std::vector<int32_t> tokens(int64_t length, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < length; ++t) ids.push_back(static_cast<int32_t>(random.below(300)));
  return ids;
}

constexpr const char* kModels[] = {"mixtral", "qwen3-moe"};

class Experts : public TinyModels {
 protected:
  Json run(const std::string& model, const std::string& recipe, std::vector<std::string> overrides = {},
           int64_t count = 6, int64_t length = 64, int threads = 2) {
    QuantizeOptions options;
    options.threads = threads;
    for (int64_t s = 0; s < count; ++s) options.samples.push_back(tokens(length, 20 + s));
    fs::remove_all(directory_ / "out");
    overrides.insert(overrides.begin(), "refine.samples=0");
    return quantize(models_ / model, load_recipe(recipe, overrides), directory_ / "out", options);
  }

  std::vector<float> native(const std::vector<int32_t>& ids) const {
    EngineOptions options;
    options.threads = 2;
    return all_logits(*Engine::load(directory_ / "out", options), ids, std::ssize(ids));
  }
};

// 8-bit weights alone move these random models, whose routers then choose other experts here and there; a
// transform that is not undone, or that the router does not share, moves them by 1.
TEST_F(Experts, TransformsAloneKeepTheModel) {
  for (const char* model : kModels) {
    const std::vector<int32_t> ids = tokens(40, 1);
    const std::vector<float> exact = ReferenceModel::load(models_ / model)->logits(ids);
    const auto distance = [&](const char* recipe) {
      run(model, recipe,
          {"weights.bits=8", "weights.group=16", "weights.clip=none", "activations.bits=16", "kv.bits=16",
           "embedding.bits=16", "lm_head.bits=16"});
      return relative_distance(ReferenceModel::load(directory_ / "out")->logits(ids), exact);
    };
    const double untransformed = distance("rtn");
    EXPECT_LT(untransformed, 0.3) << model;
    for (const char* recipe : {"quatrain-fast", "quarot-rtn", "offq-rtn"})
      EXPECT_LT(distance(recipe), 1.5 * untransformed) << model << " " << recipe;
  }
}

TEST_F(Experts, EngineEqualsReference) {
  for (const char* model : kModels)
    for (const char* recipe : {"quatrain", "quarot", "offq"}) {
      SCOPED_TRACE(fmt::format("{} {}", model, recipe));
      run(model, recipe, {"activations.layers8=none", "activations.bits=16", "kv.bits=16"});
      const std::vector<int32_t> ids = tokens(50, 2);
      EXPECT_LT(relative_distance(native(ids), ReferenceModel::load(directory_ / "out")->logits(ids)), 1e-3);
    }
}

TEST_F(Experts, EveryLinearIsQuantisedAndTheRouterIsNot) {
  for (const char* model : kModels) {
    SCOPED_TRACE(model);
    const Json report = run(model, "quatrain");
    std::set<std::string> quantised;
    for (const Json& linear : report["linears"]) quantised.insert(linear["name"].get<std::string>());
    const auto checkpoint = open_checkpoint(models_ / model);
    const ModelConfig& config = checkpoint->config();
    const ArtifactReader reader(directory_ / "out");
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      for (const LinearShape& linear : linears_of_layer(config, layer)) {
        EXPECT_TRUE(quantised.contains(linear.name)) << linear.name;
        EXPECT_TRUE(reader.has_planes(linear.name)) << linear.name;
      }
      const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
      ASSERT_NE(reader.tensors().find(mlp + "gate.weight"), nullptr);
      EXPECT_NE(reader.tensors().find(mlp + "gate.weight")->type, "U8");
      // Experts share what their inputs go through.
      const QuantizationConfig& policies = reader.quantization();
      EXPECT_EQ(policies.linear(mlp + "experts.0.gate_proj").input_transform,
                policies.linear(mlp + "experts.3.up_proj").input_transform);
      EXPECT_EQ(policies.linear(mlp + "experts.0.down_proj").input_transform,
                policies.linear(mlp + "experts.3.down_proj").input_transform);
    }
  }
}

// Every token goes to two experts of each layer.
TEST_F(Experts, CoverageIsReported) {
  const Json report = run("mixtral", "quatrain");
  for (const Json& layer : report["layers"]) {
    int64_t all = 0;
    for (const Json& count : layer["expert_tokens"]) all += count.get<int64_t>();
    EXPECT_EQ(all, 2 * 6 * 64);
    EXPECT_EQ(layer["expert_tokens"].size(), 4u);
    EXPECT_TRUE(layer["starved"].is_array());
    EXPECT_GT(layer["stream_error"].get<double>(), 0);
  }
  EXPECT_EQ(read_json(directory_ / "out" / "quantization_report.json")["layers"][0]["expert_tokens"],
            report["layers"][0]["expert_tokens"]);
  const Json nearest = run("mixtral", "quatrain-fast");
  EXPECT_EQ(nearest["layers"][0]["expert_tokens"].size(), 4u);
}

// Two tokens cannot reach eight experts: those without tokens are listed and still come out finite, for GPTQ
// and with the target corrected.
TEST_F(Experts, StarvedExpertsAreListed) {
  for (const char* recipe : {"quatrain", "quarot", "offq"}) {
    const Json report = run("qwen3-moe", recipe, {}, 1, 2);
    std::set<std::string> starved;
    for (const Json& layer : report["layers"])
      for (const Json& name : layer["starved"]) starved.insert(name.get<std::string>());
    EXPECT_EQ(starved.size(), 3u * 8) << recipe;
    EXPECT_TRUE(starved.contains("model.layers.2.mlp.experts.7")) << recipe;
    for (const Json& linear : report["linears"]) {
      const auto error = linear["relative_error"].get<double>();
      EXPECT_TRUE(error >= 0 && error < 1e3) << linear.dump();
    }
    const std::vector<float> logits = ReferenceModel::load(directory_ / "out")->logits(tokens(12, 3));
    EXPECT_TRUE(std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }));
  }
}

// GPTQ leaves less of an error in the stream than rounding to nearest, and the correction less again.
TEST_F(Experts, EachWeightStageLowersTheError) {
  const auto error = [&](const std::string& recipe, const std::vector<std::string>& overrides) {
    return run("mixtral", recipe, overrides)["layers"].back()["stream_error"].get<double>();
  };
  const double nearest =
      error("quarot", {"weights.method=rtn", "residual.budget=1e-12", "residual.score=hessian-diagonal"});
  const double gptq = error("quarot", {});
  EXPECT_LT(gptq, 0.95 * nearest);
  const double plain = error("quatrain", {"weights.target=0", "weights.stream=0"});
  EXPECT_LT(error("quatrain", {}), plain);
}

TEST_F(Experts, ThreadsDoNotChangeTheBytes) {
  const auto bytes = [&](int threads) {
    run("qwen3-moe", "quatrain", {}, 6, 48, threads);
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(directory_ / "out"))
      files[entry.path().filename().string()] = read_file(entry.path());
    return files;
  };
  EXPECT_EQ(bytes(1), bytes(3));
}

// Refinement trains the scales of every expert that a token reaches; the others keep theirs.
TEST_F(Experts, AreRefined) {
  for (const char* model : kModels)
    for (const int64_t length : {64, 2}) {  // two tokens leave most experts without any
      SCOPED_TRACE(fmt::format("{} {}", model, length));
      const Json report = run(model, "quatrain", {"refine.samples=4", "refine.length=48"}, 6, length);
      ASSERT_TRUE(report.contains("refine"));
      const Json& refined = report["refine"];
      EXPECT_EQ(refined["divergence"].size(), 2u);
      for (const Json& loss : refined["divergence"]) EXPECT_TRUE(std::isfinite(loss.get<double>()));
      const auto before = refined["held_out"]["before"].get<double>(),
                 after = refined["held_out"]["after"].get<double>();
      EXPECT_EQ(refined["kept"].get<bool>(), after < before);
      for (const Json& layer : report["layers"]) EXPECT_EQ(layer["starved"].empty(), length > 2) << layer;
      const std::vector<int32_t> ids = tokens(12, 3);
      const std::vector<float> logits = native(ids);
      EXPECT_TRUE(std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }));
    }
}

TEST_F(Experts, WhatNeedsStatisticsByExpertIsRefusedByName) {
  for (const auto& [recipe, word] : {std::pair{"smoothquant", "smooth"},
                                     {"mosaicquant", "smooth"},
                                     {"mosaicquant-quarot", "delta-hessian"}}) {
    try {
      run("mixtral", recipe);
      ADD_FAILURE() << recipe;
    } catch (const Error& error) {
      const std::string text = error.what();
      for (const char* part : {word, "mixture of experts", "mixtral"})
        EXPECT_NE(text.find(part), std::string::npos) << recipe << ": " << text;
    }
    EXPECT_FALSE(fs::exists(directory_ / "out"));
    EXPECT_FALSE(fs::exists(Journal::path_of(directory_ / "out")));
  }
}

}  // namespace
}  // namespace quatrain
