// Keys with a large bias (Qwen2): OffQ's offset-per-head keeps 4-bit keys usable, and changes nothing else.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "checkpoint/artifact.h"
#include "engine/engine.h"
#include "model/checkpoint.h"
#include "quant/pipeline.h"
#include "quant/policy.h"
#include "quant/reference.h"
#include "quant/transformed_layer.h"
#include "support/logits.h"
#include "support/tiny_models.h"

namespace quatrain {
namespace {

constexpr uint16_t kSixHundred = 0x4416;  // BF16, exact
constexpr int64_t kSlowChannel = 15;  // of a head: its RoPE angle stays below 0.001 over the test's tokens

std::vector<int32_t> tokens(int64_t length, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < length; ++t) ids.push_back(static_cast<int32_t>(random.below(300)));
  return ids;
}

class KeyBias : public TinyModels {
 protected:
  void SetUp() override {
    TinyModels::SetUp();
    if (IsSkipped()) return;
    fs::copy(models_ / "qwen2-bias", directory_ / "model", fs::copy_options::recursive);
    const fs::path path = directory_ / "model" / "model.safetensors";
    std::string bytes = read_file(path);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    const Json header = parse_json(std::string_view(bytes).substr(8, length), path.string());
    for (int layer = 0; layer < 3; ++layer) {
      const Json& bias = header.at(fmt::format("model.layers.{}.self_attn.k_proj.bias", layer));
      ASSERT_EQ(bias.at("dtype"), "BF16");
      const auto offset = bias.at("data_offsets").at(0).get<uint64_t>();
      std::memcpy(bytes.data() + 8 + length + offset + 2 * kSlowChannel, &kSixHundred, sizeof kSixHundred);
    }
    write_file(path, bytes);
  }

  // Only keys and values are quantised.
  static Recipe recipe(const std::string& key, int kv_bits) {
    return load_recipe("offq-rtn", {"transform.key=" + key, fmt::format("kv.bits={}", kv_bits),
                                    "weights.bits=8", "weights.group=16", "weights.clip=none",
                                    "activations.bits=16", "embedding.bits=16", "lm_head.bits=16"});
  }

  Json run(const std::string& key, int kv_bits, const std::string& model = "") const {
    QuantizeOptions options;
    options.threads = 2;
    for (uint64_t s = 0; s < 6; ++s) options.samples.push_back(tokens(64, 20 + s));
    fs::remove_all(directory_ / "out");
    return quantize(model.empty() ? directory_ / "model" : models_ / model, recipe(key, kv_bits),
                    directory_ / "out", options);
  }

  std::vector<float> reference() const {
    return ReferenceModel::load(directory_ / "out")->logits(tokens(48, 1));
  }

  std::vector<float> native() const {
    EngineOptions options;
    options.threads = 2;
    return all_logits(*Engine::load(directory_ / "out", options), tokens(48, 1), 48);
  }
};

// What a layer adds to the stream, and what 4-bit keys and values change of it, relative, layer by layer.
std::vector<double> errors_by_layer(const fs::path& model, const std::string& key, int kv_bits) {
  const auto source = checkpoint_weight_source(open_checkpoint(model));
  const ModelConfig& config = source->config();
  const Recipe recipe =
      parse_recipe("name = 'keys'\n[transform]\nkey = '" + key + "'\n[kv]\nbits = 4", "test");
  const QuantizationConfig plan = plan_quantization(config, recipe).config;
  ThreadPool pool(2);
  const SampleWork work(pool, {});
  const auto embed = [&](uint64_t seed) {
    return source->embedding().index_select(0, torch::tensor(tokens(48, seed)).to(torch::kLong));
  };
  std::vector<torch::Tensor> calibration;
  for (uint64_t s = 0; s < 6; ++s) calibration.push_back(embed(20 + s));
  torch::Tensor x = embed(1);
  std::vector<double> errors;
  for (int64_t index = 0; index < config.layers; ++index) {
    const DecoderLayer exact(*source, index);
    TransformedLayer turned =
        transform_layer(DecoderLayer(*source, index), config, recipe, plan, calibration, work, pool);
    if (kv_bits == 4) turned.layer.kv = plan.kv_of(static_cast<int>(index));
    const torch::Tensor expected = exact.forward(x);
    errors.push_back(((turned.layer.forward(x) - expected).norm() / (expected - x).norm()).item<double>());
    x = expected;
    for (torch::Tensor& hidden : calibration) hidden = exact.forward(hidden);
  }
  return errors;
}

// What 4 bits change of each layer: with the offset as much as if there were no bias, with a Hadamard, which
// spreads it with both signs, several times that.
TEST_F(KeyBias, IsAbsorbedByTheOffset) {
  const std::vector<double> unbiased = errors_by_layer(models_ / "qwen2-bias", "hadamard-per-head", 4);
  const auto biased = [&](const char* key) { return errors_by_layer(directory_ / "model", key, 4); };
  const std::vector<double> plain = biased("none"), spread = biased("hadamard-per-head"),
                            offset = biased("offset-per-head"), balanced = biased("balanced");
  for (size_t layer = 0; layer < unbiased.size(); ++layer) {
    SCOPED_TRACE(layer);
    EXPECT_GT(plain[layer], 2 * unbiased[layer]);
    EXPECT_GT(spread[layer], 2 * unbiased[layer]);
    EXPECT_LT(offset[layer], 1.3 * unbiased[layer]);
    EXPECT_LT(balanced[layer], 1.3 * unbiased[layer]);
  }
}

// Before quantisation nothing changes, FP32 sums over terms of 600 aside.
TEST_F(KeyBias, TransformAloneChangesNothing) {
  for (const double error : errors_by_layer(directory_ / "model", "offset-per-head", 16))
    EXPECT_LT(error, 2e-4);
}

// offq turns keys so where the architecture has key biases, and by a Hadamard elsewhere.
TEST_F(KeyBias, OffqKnowsTheArchitecture) {
  run("offset-per-head", 4);
  const ArtifactReader reader(directory_ / "out");
  const Transform& biased = reader.quantization().kv_of(1).key_transform;
  EXPECT_EQ(biased.kind, "matrix");
  const TensorInfo* tensor = reader.tensors().find(biased.tensor);
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->shape, (std::vector<int64_t>{2, 2 * 32 + 1, 32}));

  const Recipe offq = load_recipe("offq");
  EXPECT_EQ(offq.transform.key, "offset-per-head");
  const QuantizationPlan plan = plan_quantization(open_checkpoint(models_ / "llama-gqa")->config(), offq);
  EXPECT_EQ(plan.config.kv_of(1).key_transform.kind, "hadamard");
  EXPECT_NE(fmt::format("{}", fmt::join(plan.notes, "; ")).find("no bias to absorb"), std::string::npos);
}

// Few codes fall on the other side of a rounding; a transform that one of the two lacks gives 1.
TEST_F(KeyBias, EngineEqualsReference) {
  run("offset-per-head", 4);
  EXPECT_LT(relative_distance(native(), reference()), 0.05);
}

}  // namespace
}  // namespace quatrain
