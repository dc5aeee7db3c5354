// Calibrated recipes end to end on tiny models: artifacts, engine against reference, what each stage gains.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "checkpoint/artifact.h"
#include "engine/engine.h"
#include "quant/calibration.h"
#include "quant/pipeline.h"
#include "quant/reference.h"
#include "quant/weights/planes.h"
#include "support/logits.h"
#include "support/tiny_models.h"

namespace quatrain {
namespace {

std::vector<std::vector<int32_t>> samples(int64_t count, int64_t length, int64_t vocabulary, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::vector<int32_t>> all(static_cast<size_t>(count));
  for (std::vector<int32_t>& ids : all)
    for (int64_t t = 0; t < length; ++t)
      ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocabulary))));
  return all;
}

class Calibrated : public TinyModels {
 protected:
  Json run(const std::string& model, const std::string& recipe,
           const std::vector<std::string>& overrides = {}, int threads = 2) {
    QuantizeOptions options;
    options.threads = threads;
    options.samples = samples(6, 64, 300, 9);
    fs::remove_all(directory_ / "out");
    return quantize(models_ / model, load_recipe(recipe, overrides), directory_ / "out", options);
  }

  static std::vector<float> native(const fs::path& model, const std::vector<int32_t>& ids, size_t piece) {
    EngineOptions options;
    options.threads = 2;
    return all_logits(*Engine::load(model, options), ids, static_cast<int64_t>(piece));
  }
};

// Without quantisation every recipe's transforms leave the model as it was; what is left is the BF16 or FP32
// rounding of stored matrices and the 8-bit weights, which these random models amplify; a transform that is
// not undone gives 100 % and more.
TEST_F(Calibrated, TransformsAloneKeepTheModel) {
  for (const char* model : {"llama-gqa", "qwen2-bias", "qwen3-qknorm", "llama31-rope"}) {
    const std::vector<int32_t> ids = samples(1, 40, 300, 1)[0];
    const std::vector<float> exact = ReferenceModel::load(models_ / model)->logits(ids);
    for (const char* recipe : {"quatrain-fast", "quarot-rtn", "offq-rtn"}) {
      run(model, recipe,
          {"weights.bits=8", "weights.group=16", "weights.clip=none", "activations.bits=16", "kv.bits=16",
           "embedding.bits=16", "lm_head.bits=16"});
      // 8-bit weights alone move these random models by about 0.1; a transform that is not undone, by 1.
      EXPECT_LT(relative_distance(ReferenceModel::load(directory_ / "out")->logits(ids), exact), 0.2)
          << model << " " << recipe;
    }
  }
}

// Gains fold into the head, not into the embedding that it was tied to, and rotations turn both.
TEST_F(Calibrated, TiedMatricesAreUntiedBeforeAnyFold) {
  const std::vector<int32_t> ids = samples(1, 24, 300, 1)[0];
  const std::vector<float> exact = ReferenceModel::load(models_ / "llama-tied-576")->logits(ids);
  run("llama-tied-576", "quarot-rtn",
      {"weights.bits=8", "weights.group=16", "weights.clip=none", "activations.bits=16", "kv.bits=16"});
  const ArtifactReader reader(directory_ / "out");
  EXPECT_FALSE(reader.quantization().lm_head_tied);
  EXPECT_FALSE(reader.config().at("tie_word_embeddings").get<bool>());
  EXPECT_TRUE(reader.has_planes("lm_head"));
  EXPECT_LT(relative_distance(ReferenceModel::load(directory_ / "out")->logits(ids), exact), 0.2);
  EXPECT_LT(relative_distance(native(directory_ / "out", ids, ids.size()), exact), 0.2);
}

// The engine and the reference compute one artifact alike: but for FP32 summation where inputs and KV stay
// unquantised; with 8 bits these random models amplify the few codes that fall on the other side of a
// rounding. Chunk by chunk the engine gives the same bits.
TEST_F(Calibrated, EngineEqualsReference) {
  for (const char* model : {"llama-gqa", "qwen2-bias"})
    for (const char* recipe : {"quatrain", "quarot", "offq"})
      for (const auto& [bits, tolerance] : {std::pair{"16", 1e-3}, {"8", 0.1}}) {
        SCOPED_TRACE(fmt::format("{} {} {}", model, recipe, bits));
        const Json report = run(model, recipe,
                                {"activations.layers8=none", std::string("activations.bits=") + bits,
                                 std::string("kv.bits=") + bits});
        EXPECT_EQ(report["calibration"]["samples"], 6);
        const std::vector<int32_t> ids = samples(1, 50, 300, 2)[0];
        const std::vector<float> reference = ReferenceModel::load(directory_ / "out")->logits(ids);
        const std::vector<float> whole = native(directory_ / "out", ids, ids.size());
        EXPECT_LT(relative_distance(whole, reference), tolerance);
        EXPECT_EQ(whole, native(directory_ / "out", ids, 7));
      }
}

// At 4 bits, tokens one by one or all at once: the same bits.
TEST_F(Calibrated, TokensDoNotDependOnTheirChunk) {
  run("qwen2-bias", "quatrain");
  const std::vector<int32_t> ids = samples(1, 50, 300, 2)[0];
  EXPECT_EQ(native(directory_ / "out", ids, ids.size()), native(directory_ / "out", ids, 1));
}

TEST_F(Calibrated, StoresItsTransforms) {
  const Json report = run("llama-gqa", "quatrain", {"transform.inputs=balanced-block"});
  const ArtifactReader reader(directory_ / "out");
  const QuantizationConfig& config = reader.quantization();
  const Transform& input = config.linear("model.layers.0.self_attn.k_proj").input_transform;
  EXPECT_EQ(input.kind, "block");
  EXPECT_EQ(input.tensor, "model.layers.0.self_attn.input_transform");
  EXPECT_EQ(config.linear("model.layers.0.mlp.up_proj").input_transform.tensor,
            "model.layers.0.mlp.input_transform");
  EXPECT_EQ(config.kv_of(1).key_transform.kind, "matrix");
  EXPECT_EQ(reader.tensors().find(input.tensor)->type, "BF16");
  EXPECT_EQ(config.linear("model.layers.0.self_attn.q_proj").activation.bits, 8);
  size_t blocks = 0;  // q, k and v share their budget: a tenth of 12 x 2 blocks
  for (const char* name : {"q_proj", "k_proj", "v_proj"})
    blocks += reader.planes(std::string("model.layers.1.self_attn.") + name).residual_index.size();
  EXPECT_EQ(blocks, 3u);
  EXPECT_EQ(load_recipe((directory_ / "out" / "recipe.toml").string()).weights.target, 0.25);
  for (const Json& layer : report["layers"]) EXPECT_GT(layer["stream_error"].get<double>(), 0);
}

// GPTQ inside the pipeline leaves less of an error in the stream than rounding to nearest, and the
// correction of the target less again.
TEST_F(Calibrated, EachWeightStageLowersTheError) {
  const auto error = [&](const std::string& recipe, const std::vector<std::string>& overrides) {
    return run("llama-gqa", recipe, overrides)["layers"].back()["stream_error"].get<double>();
  };
  // A budget too small for any block makes round-to-nearest follow the stream.
  const double nearest =
      error("quarot", {"weights.method=rtn", "residual.budget=1e-12", "residual.score=hessian-diagonal"});
  const double gptq = error("quarot", {});
  EXPECT_LT(gptq, 0.9 * nearest);
  const double plain = error("quatrain", {"weights.target=0", "weights.stream=0"});
  EXPECT_LT(error("quatrain", {}), plain);
}

TEST_F(Calibrated, SameFilesFromAnyRun) {
  const auto bytes = [&] {
    run("llama-gqa", "quatrain");
    std::string all;
    for (const auto& entry : fs::directory_iterator(directory_ / "out"))
      if (entry.path().extension() == ".safetensors") all += read_file(entry.path());
    return all;
  };
  EXPECT_EQ(bytes(), bytes());
}

TEST_F(Calibrated, RefusesByName) {
  const auto text = [&](const std::string& model, const std::vector<std::string>& overrides, uint64_t ram) {
    QuantizeOptions options;
    options.samples = samples(2, 64, 300, 9);
    options.max_ram = ram;
    try {
      quantize(models_ / model, load_recipe("quatrain", overrides), directory_ / "refused", options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(text("gemma3-text", {"transform.residual=hadamard"}, 0).find("gemma3"), std::string::npos);
  EXPECT_NE(text("llama-gqa", {}, 1 << 20).find("--max-ram"), std::string::npos);
  EXPECT_FALSE(fs::exists(directory_ / "refused"));
  EXPECT_FALSE(fs::exists((directory_ / "refused").string() + ".partial"));
}

TEST(Calibration, ChoosesWindowsThenRandomStarts) {
  std::vector<int32_t> tokens(105);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
  const auto first = choose_samples(tokens, 10, 10, 1, "text");
  std::vector<int32_t> starts;
  for (const auto& ids : first) {
    ASSERT_EQ(ids.size(), 10u);
    EXPECT_EQ(ids[9] - ids[0], 9);
    starts.push_back(ids[0]);
  }
  EXPECT_FALSE(std::is_sorted(starts.begin(), starts.end()));
  std::sort(starts.begin(), starts.end());
  for (int32_t i = 0; i < 10; ++i) EXPECT_EQ(starts[static_cast<size_t>(i)], 10 * i);
  const auto more = choose_samples(tokens, 14, 10, 1, "text");
  EXPECT_TRUE(std::equal(first.begin(), first.end(), more.begin()));
  EXPECT_EQ(more.size(), 14u);
  EXPECT_NE(first, choose_samples(tokens, 10, 10, 2, "text"));
  EXPECT_THROW(choose_samples(tokens, 1, 106, 1, "text"), Error);
}

TEST(Planes, SlicesKeepRowsAndResiduals) {
  NibblePlanes planes = make_planes(40, 50, 16, 32, {0, 3, 4});
  SplitMix64 random(1);
  std::vector<float> weights(40 * 50);
  for (float& weight : weights) weight = static_cast<float>(random.normal());
  for (float& scale : planes.scale) scale = 0.25f + static_cast<float>(random.below(8)) / 16;
  for (int64_t row = 0; row < 40; ++row) store_row(planes, row, std::span(weights).subspan(row * 50, 50));
  for (const auto& [begin, end] : {std::pair{0, 16}, {16, 40}, {32, 40}, {0, 40}}) {
    const NibblePlanes part = slice_rows(planes, begin, end);
    std::vector<float> whole(50), sliced(50);
    for (int64_t row = begin; row < end; ++row) {
      planes.dequantize_row(row, whole.data());
      part.dequantize_row(row - begin, sliced.data());
      EXPECT_EQ(whole, sliced) << row;
    }
  }
  EXPECT_THROW(slice_rows(planes, 8, 24), Error);
}

}  // namespace
}  // namespace quatrain
