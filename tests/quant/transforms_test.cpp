// Merged transforms leave the function as it was: logits of the transformed model equal the original's.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "quant/reference/decoder_layer.h"
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

// FP32 weights are rounded once after the merge: relative differences stay at the size of two summation
// orders, 1e-4 of the largest logit.
TEST_P(MergedModel, KeepsItsLogits) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP();
  const fs::path path = *shared / "fixtures" / "tiny-models" / GetParam();
  const std::vector<int32_t> ids = {106, 88, 57,  67,  120, 200, 0,   85, 61,
                                    19,  74, 171, 185, 169, 266, 149, 55};
  const std::vector<float> expected = ReferenceModel::load(path)->logits(ids);
  auto source = open_weight_source(path);
  const ModelConfig config = source->config();
  MergedTransforms transforms;
  transforms.residual = hadamard_rotation(config.hidden, hadamard_order(config.hidden), 11);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    // A Hadamard times a diagonal: invertible, not orthogonal.
    const torch::Tensor scale = torch::linspace(0.5, 2, config.head_dim, torch::kDouble);
    transforms.value.push_back(hadamard_rotation(config.head_dim, hadamard_order(config.head_dim), 5) *
                               scale);
  }
  const std::vector<float> logits =
      make_reference(merge_transforms(std::move(source), std::move(transforms)), "merged")->logits(ids);
  float largest = 0;
  for (const float value : expected) largest = std::max(largest, std::fabs(value));
  for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 1e-4f * largest);
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
    merge_transforms(open_weight_source(*shared / "fixtures" / "tiny-models" / "gemma3-text"), {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("gemma3"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace quatrain
