// Synthetic models: reproducible, of the stated distribution, and ordinary checkpoints; inspect counts their
// bytes.
#include "model/synth.h"

#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/artifact.h"
#include "model/checkpoint.h"
#include "model/inspect.h"
#include "model/shape_file.h"
#include "test_model.h"

namespace quatrain {
namespace {

TEST(Synth, StreamDoesNotDependOnHowItIsRead) {
  std::vector<float> whole(50'000);
  synthetic_values(7, "a.weight", 0, whole);
  std::vector<float> part(333);
  for (const int64_t begin : {0, 1, 16383, 16384, 40'000}) {
    synthetic_values(7, "a.weight", begin, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin)) << begin;
  }
  std::vector<float> other(50'000);
  synthetic_values(8, "a.weight", 0, other);
  EXPECT_NE(whole, other);
  synthetic_values(7, "b.weight", 0, other);
  EXPECT_NE(whole, other);
}

TEST(Synth, MomentsAreThoseOfTheStatedDistribution) {
  std::vector<float> values(1 << 20);
  synthetic_values(3, "x", 0, values);
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
    ASSERT_LE(std::abs(value), 3.4642f);
  }
  const auto n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));            // five standard errors
  EXPECT_NEAR(squares / n, 1, 5 * 1.3 / std::sqrt(n));  // kurtosis 2.7: the square's deviation is 1.3
}

TEST(Synth, EveryFamilyIsAnOrdinaryModel) {
  for (const char* type :
       {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma3_text", "phi3"}) {
    SCOPED_TRACE(type);
    const Json json = {{"model_type", type},       {"vocab_size", 50},
                       {"hidden_size", 40},        {"intermediate_size", 56},
                       {"num_hidden_layers", 2},   {"num_attention_heads", 5},
                       {"num_key_value_heads", 1}, {"head_dim", 8},
                       {"num_local_experts", 3},   {"moe_intermediate_size", 24},
                       {"num_experts_per_tok", 2}, {"sliding_window", 8}};
    const ModelConfig config = ModelConfig::from_json(json, "test");
    const fs::path folder = fresh_folder(std::string("synth-") + type);
    synthesize(config, folder / "a", {.seed = 5, .threads = 2, .shard_bytes = 20'000});
    synthesize(config, folder / "b", {.seed = 5, .threads = 1, .shard_bytes = 1 << 30});
    const auto a = open_checkpoint(folder / "a"), b = open_checkpoint(folder / "b");
    EXPECT_EQ(a->config(), config);
    EXPECT_EQ(a->read("model.layers.1.self_attn.k_proj.weight"),
              b->read("model.layers.1.self_attn.k_proj.weight"));
    const auto unwritten = synthetic_checkpoint(config, {.seed = 5});
    EXPECT_EQ(unwritten->config(), a->config());
    for (int64_t layer = 0; layer < config.layers; ++layer)
      for (const LinearShape& linear : linears_of_layer(config, layer))
        EXPECT_EQ(unwritten->read(linear.name + ".weight"), a->read(linear.name + ".weight")) << linear.name;
    EXPECT_NE(unwritten->fingerprint(), synthetic_checkpoint(config, {.seed = 6})->fingerprint());
    for (const float gain : a->read("model.norm.weight")) EXPECT_EQ(gain + config.norm_offset, 1);
    double squares = 0;
    const auto embedding = a->read("model.embed_tokens.weight");
    for (const float value : embedding) squares += static_cast<double>(value) * value;
    EXPECT_NEAR(squares / static_cast<double>(embedding.size()), 1.0 / 40, 0.15 / 40);
    EXPECT_THROW(synthesize(config, folder / "a", {}), Error);  // the directory is taken
  }
}

TEST(Inspect, CountsBytesOfPlainModels) {
  const Json json = {{"model_type", "llama"},   {"vocab_size", 64},       {"hidden_size", 64},
                     {"intermediate_size", 96}, {"num_hidden_layers", 2}, {"num_attention_heads", 4},
                     {"num_key_value_heads", 2}};
  const ModelConfig config = ModelConfig::from_json(json, "test");
  const fs::path folder = fresh_folder("inspect");
  synthesize(config, folder / "model", {.dtype = "bfloat16"});
  const Json report = inspect_model(folder / "model");
  EXPECT_EQ(report["architecture"], "llama");
  EXPECT_EQ(report["parameters"], parameter_count(config));
  EXPECT_EQ(report["bytes"], 2 * parameter_count(config));
  EXPECT_EQ(report["bits_per_weight"], 16);
  EXPECT_EQ(report["effective_bits"]["weights"], 16);
  EXPECT_EQ(report["effective_bits"]["kv"], 16);
  ASSERT_EQ(report["layers"].size(), 2u);
  EXPECT_EQ(report["layers"][1]["linears"].size(), 7u);
  const std::string text = inspect_text(report);
  EXPECT_NE(text.find("layers 0 to 1"), std::string::npos) << text;
}

// A hand-made artifact: q_proj with groups of 32 and one residual block, the rest plain W4 rows.
TEST(Inspect, CountsScalesAndResidualOfArtifacts) {
  const Json json = {{"model_type", "llama"},    {"vocab_size", 32},           {"hidden_size", 64},
                     {"intermediate_size", 64},  {"num_hidden_layers", 1},     {"num_attention_heads", 4},
                     {"num_key_value_heads", 4}, {"tie_word_embeddings", true}};
  const ModelConfig config = ModelConfig::from_json(json, "test");
  const fs::path folder = fresh_folder("inspect-artifact");
  const auto planes_of = [](int64_t rows, int64_t columns, int64_t group, bool residual) {
    NibblePlanes planes;
    planes.rows = rows;
    planes.columns = columns;
    planes.weight_group = group;
    planes.residual_block = 32;
    planes.hi.assign(static_cast<size_t>(rows * columns / 2), 0x11);
    planes.scale.assign(static_cast<size_t>(rows * planes.groups()), 0.5f);
    if (residual) {
      planes.residual_index = {1};
      planes.lo.assign(16 * 32 / 2, 0x22);
    }
    return planes;
  };
  QuantizationConfig quantization;
  quantization.recipe = "test";
  quantization.defaults.activation = {.bits = 4, .group = 32, .symmetric = false};
  quantization.defaults.residual_block = 32;
  quantization.kv.bits = 4;
  LinearPolicy grouped = quantization.defaults;
  grouped.weight_group = 32;
  quantization.linears["model.layers.0.self_attn.q_proj"] = grouped;
  LinearPolicy transformed = quantization.defaults;
  transformed.input_transform = {.kind = "block", .order = 32, .tensor = "model.layers.0.o.transform"};
  quantization.linears["model.layers.0.self_attn.o_proj"] = transformed;
  quantization.embedding_bits = 16;
  quantization.lm_head_bits = 16;
  quantization.lm_head_tied = true;
  {
    ArtifactWriter writer(folder / "artifact");
    writer.add_tensor("model.layers.0.o.transform", {2, 32, 32}, std::vector<float>(2048, 1.0f), "BF16");
    for (const LinearShape& linear : linears_of_layer(config, 0)) {
      const bool q = linear.name.ends_with("q_proj");
      writer.add_planes(linear.name, planes_of(linear.out, linear.in, q ? 32 : 0, q));
    }
    for (const auto& tensors : {plain_tensors_of_model(config), plain_tensors_of_layer(config, 0)})
      for (const PlainShape& tensor : tensors) {
        int64_t count = 1;
        for (const int64_t size : tensor.shape) count *= size;
        writer.add_tensor(tensor.name, tensor.shape, std::vector<float>(static_cast<size_t>(count), 1.0f),
                          "BF16");
      }
    writer.finish(config.to_json(), quantization, "name = \"test\"\n", Json::object());
  }
  const Json report = inspect_model(folder / "artifact");
  // q: 64 x 64 codes, 128 FP16 scales, one block of 256 bytes and its 4-byte number; the other six 64 x 64
  // codes and 64 FP32 scales.
  // And two BF16 blocks of 32 x 32 before o.
  const double bits = 8.0 * (2048 + 256 + 256 + 4 + 6 * (2048 + 256)) + 16.0 * 2048;
  EXPECT_DOUBLE_EQ(report["effective_bits"]["weights"], bits / (7 * 4096));
  EXPECT_DOUBLE_EQ(report["effective_bits"]["transforms"], 16.0 * 2048 / (7 * 4096));
  EXPECT_DOUBLE_EQ(report["bits_per_weight"], (bits + 16 * 2048) / (7 * 4096 + 2048));
  EXPECT_DOUBLE_EQ(report["effective_bits"]["activations"], 4 + 48.0 / 32);
  EXPECT_DOUBLE_EQ(report["effective_bits"]["kv"], 4 + 32.0 / 16);
  const Json& q = report["layers"][0]["linears"][0];
  EXPECT_EQ(q["weight_group"], 32);
  EXPECT_DOUBLE_EQ(q["residual_share"], 1.0 / 8);
  EXPECT_EQ(q["activation"]["bits"], 4);
  EXPECT_NE(inspect_text(report).find("residual 12.5 %"), std::string::npos) << inspect_text(report);
}

}  // namespace
}  // namespace quatrain
