#include "quant/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "checkpoint/artifact.h"
#include "model/checkpoint.h"
#include "quant/policy.h"
#include "quant/reference.h"
#include "quant/report_times.h"
#include "support/tiny_models.h"

namespace quatrain {
namespace {

std::vector<int32_t> some_tokens() {
  return {106, 88, 57, 67, 120, 200, 0, 85, 61, 19, 74, 171, 185, 169, 266, 149, 55, 294, 160, 84};
}

class Pipeline : public TinyModels {
 protected:
  Json run(const fs::path& model, const std::string& recipe, const std::vector<std::string>& overrides = {},
           uint64_t max_ram = 0) {
    QuantizeOptions options;
    options.threads = 2;
    options.max_ram = max_ram;
    fs::remove_all(directory_ / "out");
    return quantize(model, load_recipe(recipe, overrides), directory_ / "out", options);
  }
  std::vector<float> logits(const fs::path& model) {
    return ReferenceModel::load(model)->logits(some_tokens());
  }
};

// 8-bit weights and inputs stay near the 16-bit model, 4 bits move further away: every model, whole path.
// These random models amplify: a weight error of 0.6 % becomes up to 27 % of the logits with exact inputs; a
// swapped matrix or a wrong scale gives 100 % and more.
TEST_F(Pipeline, EveryTinyModelKeepsItsLogits) {
  for (const char* name : {"gemma3-text", "llama-gqa", "llama-tied-576", "llama31-rope", "mixtral",
                           "qwen2-bias", "qwen3-moe", "qwen3-qknorm"}) {
    const std::vector<float> exact = logits(models_ / name);
    run(models_ / name, "w8a8");
    const double eight = relative_distance(logits(directory_ / "out"), exact);
    const Json report = run(models_ / name, "rtn-g64");
    const double four = relative_distance(logits(directory_ / "out"), exact);
    EXPECT_LT(eight, 0.5) << name;
    EXPECT_LT(eight, four) << name;
    EXPECT_TRUE(std::isfinite(four)) << name;
    EXPECT_FALSE(fs::exists((directory_ / "out").string() + ".partial"));
    for (const Json& linear : report["linears"]) {
      const bool token_matrix = linear["name"] == kEmbeddingName || linear["name"] == kHeadName;
      EXPECT_LT(linear["relative_error"].get<double>(), token_matrix ? 0.02 : 0.2) << linear;
      EXPECT_GT(linear["relative_error"].get<double>(), 0) << linear;
    }
  }
}

TEST_F(Pipeline, GroupsThatDoNotDivideAreFittedAndNoted) {
  const Json report = run(models_ / "qwen3-qknorm", "rtn-g128");  // widths 96, 128, 288
  const ArtifactReader reader(directory_ / "out");
  const QuantizationConfig& config = reader.quantization();
  EXPECT_EQ(config.linear("model.layers.0.self_attn.q_proj").weight_group, 32);
  EXPECT_EQ(config.linear("model.layers.0.self_attn.q_proj").activation.group, 32);
  EXPECT_EQ(config.linear("model.layers.1.self_attn.o_proj").weight_group, 128);
  EXPECT_EQ(config.linear("model.layers.2.mlp.down_proj").weight_group, 32);
  EXPECT_EQ(config.linear("lm_head").activation, (ActivationPolicy{8, 32, false}));
  ASSERT_FALSE(report["notes"].empty());
  EXPECT_NE(report["notes"].dump().find("width 96: weight groups of 128 do not divide it, 32 are used"),
            std::string::npos)
      << report["notes"];
  EXPECT_EQ(reader.planes("model.layers.0.self_attn.q_proj").groups(), 3);
}

TEST_F(Pipeline, ReportAndPolicies) {
  const Json report = run(models_ / "qwen3-moe", "rtn", {"activations.layers8=[1]", "kv.group=16"});
  EXPECT_EQ(report["summary"], "quantised 85 of 85 linear layers");  // 3 * (4 + 8 * 3) + lm_head
  const ArtifactReader reader(directory_ / "out");
  const QuantizationConfig& config = reader.quantization();
  EXPECT_EQ(config.linear("model.layers.0.self_attn.q_proj").activation, (ActivationPolicy{4, 0, true}));
  EXPECT_EQ(config.linear("model.layers.1.mlp.experts.7.down_proj").activation,
            (ActivationPolicy{8, 0, true}));
  EXPECT_EQ(config.kv.bits, 4);
  EXPECT_FALSE(config.lm_head_tied);
  // The router stays unquantised.
  EXPECT_FALSE(reader.has_planes("model.layers.0.mlp.gate"));
  const TensorInfo* router = reader.tensors().find("model.layers.0.mlp.gate.weight");
  ASSERT_NE(router, nullptr);
  EXPECT_EQ(router->type, "F16");
  EXPECT_NE(std::find(config.unquantized.begin(), config.unquantized.end(), "model.layers.0.mlp.gate"),
            config.unquantized.end());
  EXPECT_GT(config.bits_per_weight, 4);
  EXPECT_LT(config.bits_per_weight, 8.5);
  EXPECT_EQ(load_recipe((directory_ / "out" / "recipe.toml").string()).activations.layers8, "1");
  EXPECT_EQ(read_json(directory_ / "out" / "quantization_report.json"), without_times(report));
  EXPECT_TRUE(fs::exists(directory_ / "out" / "generation_config.json"));
}

TEST_F(Pipeline, TiedEmbeddings) {
  run(models_ / "llama-tied-576", "w8a8");
  {
    const ArtifactReader reader(directory_ / "out");
    EXPECT_TRUE(reader.quantization().lm_head_tied);
    EXPECT_TRUE(reader.has_planes("model.embed_tokens"));
    EXPECT_FALSE(reader.has_planes("lm_head"));
  }
  const std::vector<float> tied = logits(directory_ / "out");
  run(models_ / "llama-tied-576", "w8a8", {"embedding.bits=16"});
  const ArtifactReader reader(directory_ / "out");
  EXPECT_FALSE(reader.quantization().lm_head_tied);
  EXPECT_FALSE(reader.config()["tie_word_embeddings"].get<bool>());
  EXPECT_TRUE(reader.has_planes("lm_head"));
  EXPECT_FALSE(reader.has_planes("model.embed_tokens"));
  EXPECT_LT(relative_distance(logits(directory_ / "out"), tied), 0.5);
}

TEST_F(Pipeline, BiasesAreKept) {
  run(models_ / "qwen2-bias", "rtn");
  const auto checkpoint = open_checkpoint(models_ / "qwen2-bias");
  const ArtifactReader reader(directory_ / "out");
  EXPECT_EQ(reader.planes("model.layers.1.self_attn.k_proj").bias,
            checkpoint->read("model.layers.1.self_attn.k_proj.bias"));
}

TEST_F(Pipeline, SameFilesFromAnyNumberOfThreads) {
  const auto bytes = [&](int threads) {
    QuantizeOptions options;
    options.threads = threads;
    fs::remove_all(directory_ / "out");
    quantize(models_ / "llama-gqa", load_recipe("rtn-g64", {"residual.budget=0.1"}), directory_ / "out",
             options);
    std::string all;
    for (const auto& entry : fs::directory_iterator(directory_ / "out"))
      if (entry.path().extension() == ".safetensors") all += read_file(entry.path());
    return all;
  };
  const std::string one = bytes(1);
  EXPECT_FALSE(one.empty());
  EXPECT_EQ(one, bytes(3));
}

TEST_F(Pipeline, RefusesTooLittleMemoryAndExistingOutput) {
  EXPECT_THROW(run(models_ / "llama-gqa", "rtn", {}, 1 << 20), Error);
  EXPECT_FALSE(fs::exists(directory_ / "out"));
  run(models_ / "llama-gqa", "rtn");
  EXPECT_THROW(quantize(models_ / "llama-gqa", load_recipe("rtn"), directory_ / "out", {}), Error);
  EXPECT_THROW(quantize(directory_ / "out", load_recipe("rtn"), directory_ / "again", {}), Error);
  EXPECT_THROW(quantize(directory_ / "nothing", load_recipe("rtn"), directory_ / "again", {}), Error);
}

TEST_F(Pipeline, NaNWeightsAreNamed) {
  fs::create_directories(directory_ / "model");
  fs::copy_file(models_ / "llama-gqa" / "config.json", directory_ / "model" / "config.json");
  std::string file = read_file(models_ / "llama-gqa" / "model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, file.data(), 8);
  const Json index = parse_json(std::string_view(file).substr(8, header), "header");
  const uint64_t begin = index["model.layers.2.mlp.up_proj.weight"]["data_offsets"][0];
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(file.data() + 8 + header + begin + 4 * (3 * 128 + 7), &nan, 4);  // row 3, column 7
  write_file(directory_ / "model" / "model.safetensors", file);
  try {
    run(directory_ / "model", "rtn");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("model.layers.2.mlp.up_proj.weight"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("row 3"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(fs::exists(directory_ / "out"));
}

}  // namespace
}  // namespace quatrain
