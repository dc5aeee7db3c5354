#include "quant/activations/jump_ratio.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "support/shared.h"

namespace quatrain {
namespace {

TEST(JumpRatio, RotationKeepsItAndEightBitsAddTwentyFourDecibels) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP();
  const fs::path model = *shared / "fixtures" / "tiny-models" / "llama-gqa";
  const std::vector<std::vector<int32_t>> samples = {{106, 88, 57, 67, 120, 200, 0, 85, 61, 19, 74, 171},
                                                     {185, 169, 266, 149, 55, 294, 160, 84}};
  const std::vector<LayerJump> plain = measure_jumps(model, samples, false);
  const std::vector<LayerJump> rotated = measure_jumps(model, samples, true);
  ASSERT_EQ(plain.size(), 3u);
  for (size_t i = 0; i < plain.size(); ++i) {
    // Two summation orders of FP32 layers.
    EXPECT_NEAR(rotated[i].jump_ratio, plain[i].jump_ratio, 1e-4 * plain[i].jump_ratio);
    // A step 17 times finer: 20 log10(17) = 24.6 dB, up to how values fall between steps.
    EXPECT_NEAR(plain[i].snr8 - plain[i].snr4, 24.6, 1.5);
    EXPECT_NEAR(rotated[i].snr8 - rotated[i].snr4, 24.6, 1.5);
  }
  EXPECT_THROW(measure_jumps(model, {{320}}, false), Error);
}

TEST(JumpRatio, ChoosesLayers) {
  const std::vector<LayerJump> jumps = {{1.68, 10.85, 35}, {1.53, 12.9, 37}, {0.94, 12.9, 37},
                                        {0.83, 13.6, 38},  {0.31, 15.9, 40}, {0.53, 15.1, 39},
                                        {1.20, 13.45, 38}};
  // The curve published for Llama-3-8B, shortened.
  EXPECT_EQ(layers_by_threshold(jumps), (std::vector<int64_t>{0, 1, 2, 6}));
  EXPECT_EQ(layers_by_rank(jumps, 4), (std::vector<int64_t>{0, 1, 2, 6}));
  EXPECT_EQ(layers_by_rank(jumps, 9).size(), 7u);
  EXPECT_NE(jump_text(jumps).find("by rank: 0, 1, 2, 6"), std::string::npos) << jump_text(jumps);
  EXPECT_EQ(jump_json(jumps)["by_rank"].size(), 4u);
}

}  // namespace
}  // namespace quatrain
