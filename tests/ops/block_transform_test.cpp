#include "ops/block_transform.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "each_isa.h"

namespace quatrain::ops {
namespace {

TEST(BlockTransform, EqualsTheDefinitionOnEveryIsa) {
  for (const int64_t order : {1, 3, 16, 40, 64, 128}) {
    SCOPED_TRACE(order);
    const std::vector<int32_t> of_block = {1, 0, 1};
    const std::vector<float> matrices = random_values(2 * order * order, 3);
    const std::vector<float> offset = random_values(3 * order, 4, 5),
                             x = random_values(29 * (3 * order + 5), 5);
    each_isa([&] {
      const BlockTransform transform(order, matrices, of_block, offset);
      std::vector<float> y = x;
      transform.apply(y.data(), 29, 3 * order + 5, 0, transform.blocks());
      for (int64_t row = 0; row < 29; ++row) {
        const float* in = x.data() + row * (3 * order + 5);
        const float* out = y.data() + row * (3 * order + 5);
        for (int64_t column = 0; column < 3 * order; ++column) {
          const int64_t block = column / order;
          double sum = 0, magnitude = 0;
          for (int64_t k = 0; k < order; ++k) {
            const double term = (double{in[block * order + k]} - offset[block * order + k]) *
                                matrices[(of_block[block] * order + k) * order + column % order];
            sum += term;
            magnitude += std::fabs(term);
          }
          ASSERT_NEAR(out[column], sum, (order + 2) * 0x1p-24 * magnitude) << row << " " << column;
        }
        for (int64_t i = 3 * order; i < 3 * order + 5; ++i) ASSERT_EQ(out[i], in[i]);
      }
    });
  }
}

TEST(BlockTransform, DoesNotDependOnTheRowsBesideIt) {
  const std::vector<float> x = random_values(40 * 128, 6);
  each_isa([&] {
    const BlockTransform transform(64, random_values(2 * 64 * 64, 7), {0, 1});
    std::vector<float> together = x, alone = x;
    transform.apply(together.data(), 40, 128, 0, transform.blocks());
    for (int64_t row = 0; row < 40; ++row)
      for (int64_t block = 0; block < transform.blocks(); ++block)
        transform.apply(alone.data() + row * 128, 1, 128, block, block + 1);
    EXPECT_EQ(together, alone);
  });
}

TEST(BlockTransform, RefusesSizesThatDisagree) {
  EXPECT_THROW(BlockTransform(4, random_values(15, 1), {0}), Error);
  EXPECT_THROW(BlockTransform(4, random_values(16, 1), {1}), Error);
  EXPECT_THROW(BlockTransform(4, random_values(16, 1), {}), Error);
  EXPECT_THROW(BlockTransform(4, random_values(16, 1), {0}, {1.0f}), Error);
}

}  // namespace
}  // namespace quatrain::ops
