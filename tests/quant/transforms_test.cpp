// Merged transforms leave the function as it was: logits of the transformed model equal the original's.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "quant/reference/decoder_layer.h"
#include "quant/transforms/layer_transforms.h"
#include "quant/transforms/merged_source.h"
#include "quant/transforms/rotation.h"
#include "support/shared.h"

namespace quatrain {
namespace {

TEST(Rotation, IsOrthogonalForEveryWidth) {
  for (const int64_t width : {16, 64, 96, 128, 144, 576, 1536}) {
    const torch::Tensor q = hadamard_rotation(width, hadamard_order(width), 7);
    const torch::Tensor error = q.matmul(q.t()) - torch::eye(width, torch::kDouble);
    EXPECT_LT(error.abs().max().item<double>(), 1e-12) << width;
    EXPECT_NEAR(q.abs().max().item<double>(), 1 / std::sqrt(static_cast<double>(hadamard_order(width))),
                1e-12);
  }
  // The first channel of a block becomes one constant offset of all its outputs.
  const torch::Tensor q = hadamard_rotation(128, 64, 3, true);
  EXPECT_LT((q[0].slice(0, 0, 64) - 0.125).abs().max().item<double>(), 1e-12);
  EXPECT_LT((q[64].slice(0, 64) - 0.125).abs().max().item<double>(), 1e-12);
  EXPECT_EQ(q[0].slice(0, 64).abs().max().item<double>(), 0);
  EXPECT_THROW(hadamard_rotation(100, 64, 1), Error);
}

class MergedModel : public testing::TestWithParam<const char*> {};

std::vector<int32_t> some_tokens() {
  return {106, 88, 57, 67, 120, 200, 0, 85, 61, 19, 74, 171, 185, 169, 266, 149, 55};
}

void expect_equal(const std::vector<float>& logits, const std::vector<float>& expected, float tolerance) {
  ASSERT_EQ(logits.size(), expected.size());
  float largest = 0;
  for (const float value : expected) largest = std::max(largest, std::fabs(value));
  for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], tolerance * largest);
}

// FP32 weights are rounded once after the merge: relative differences stay at the size of two summation
// orders, 1e-4 of the largest logit.
TEST_P(MergedModel, KeepsItsLogits) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP();
  const fs::path path = *shared / "fixtures" / "tiny-models" / GetParam();
  auto source = open_weight_source(path);
  const int64_t hidden = source->config().hidden;
  auto merged = merge_rotation(std::move(source), hadamard_rotation(hidden, hadamard_order(hidden), 11));
  expect_equal(make_reference(std::move(merged), "merged")->logits(some_tokens()),
               ReferenceModel::load(path)->logits(some_tokens()), 1e-4f);
}

// A random matrix near the identity, so that its inverse loses little: FP64 [blocks, n, n].
torch::Tensor invertible(int64_t blocks, int64_t n) {
  return torch::eye(n, torch::kDouble) + 0.5 / n * torch::randn({blocks, n, n}, torch::kDouble);
}

// Every transform of a layer at once, on the rotated model; what a quantiser would see differs, the logits
// do not.
TEST_P(MergedModel, KeepsItsLogitsUnderLayerTransforms) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP();
  torch::manual_seed(3);
  const fs::path path = *shared / "fixtures" / "tiny-models" / GetParam();
  auto plain = open_weight_source(path);
  const ModelConfig original = plain->config();
  if (original.moe.experts > 0) GTEST_SKIP();
  const auto source = merge_rotation(std::move(plain),
                                     hadamard_rotation(original.hidden, hadamard_order(original.hidden), 11));
  const ModelConfig& config = source->config();
  const std::vector<int32_t> ids = some_tokens();
  torch::Tensor x = source->embedding().index_select(0, torch::tensor(ids, torch::kLong));
  for (int64_t index = 0; index < config.layers; ++index) {
    DecoderLayer layer(*source, index);
    const int64_t dim = config.head_dim;
    merge_value_transform(layer, invertible(config.kv_heads, dim));
    const torch::Tensor key = invertible(config.kv_heads, dim);
    layer.key_transform = {key.to(torch::kFloat), torch::linalg_inv(key).transpose(1, 2).to(torch::kFloat),
                           torch::randn({config.kv_heads, dim})};
    const auto transform = [](std::vector<ReferenceLinear*> linears, int64_t block) {
      const torch::Tensor blocks = invertible(linears[0]->weight.size(1) / block, block).to(torch::kFloat);
      for (ReferenceLinear* linear : linears)
        merge_input_transform(*linear, {"block", block, 0, "t"}, blocks);
    };
    DecoderLayer::Mlp& mlp = layer.mlps[0];
    permute_inner(mlp, torch::randperm(config.intermediate, torch::kLong));
    transform({&layer.q, &layer.k, &layer.v}, 16);
    transform({&layer.o}, config.query_width());
    transform({&mlp.gate, &mlp.up}, 16);
    transform({&mlp.down}, 16);
    x = layer.forward(x);
  }
  x = rms_norm(x, source->plain("model.norm.weight"), config);
  const torch::Tensor logits = source->head().product(x).contiguous();
  expect_equal({logits.data_ptr<float>(), logits.data_ptr<float>() + logits.numel()},
               ReferenceModel::load(path)->logits(ids), 2e-4f);
}

INSTANTIATE_TEST_SUITE_P(Transforms, MergedModel,
                         testing::Values("llama-gqa", "llama-tied-576", "llama31-rope", "mixtral",
                                         "qwen2-bias", "qwen3-moe", "qwen3-qknorm"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Transforms, SandwichNormsAreRefusedByName) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP();
  try {
    merge_rotation(open_weight_source(*shared / "fixtures" / "tiny-models" / "gemma3-text"), {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("gemma3"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace quatrain
