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

// Random matrices [count, order, order] whose columns are bytes times a power of two of their own.
std::vector<float> byte_matrices(int64_t count, int64_t order, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<float> values(static_cast<size_t>(count * order * order));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::ldexp(static_cast<float>(static_cast<int>(random.below(255)) - 127),
                           static_cast<int>(i % static_cast<size_t>(order) % 7) - 9);
  return values;
}

// Rounding moves each value by at most half a step, largest / 32512.
TEST(BlockTransform, BytesEqualTheDefinitionOnEveryIsaBitForBit) {
  for (const int64_t order : {1, 3, 16, 40, 64, 100, 128, 512}) {
    SCOPED_TRACE(order);
    const int64_t rows = 5, stride = 3 * order + 5;
    const std::vector<int32_t> of_block = {1, 0, 1};
    const std::vector<float> matrices = byte_matrices(2, order, 3);
    const std::vector<float> offset = random_values(3 * order, 4, 5), x = random_values(rows * stride, 5);
    std::vector<float> generic;
    each_isa([&] {
      const BlockTransform transform(order, matrices, of_block, offset);
      EXPECT_EQ(transform.bytes(), 3 * ((order + 15) / 16 * 16) * ((order + 3) / 4 * 4));
      std::vector<float> y = x;
      transform.apply(y.data(), rows, stride, 0, transform.blocks());
      if (generic.empty()) generic = y;
      EXPECT_EQ(y, generic);
      for (int64_t row = 0; row < rows; ++row) {
        const float* in = x.data() + row * stride;
        const float* out = y.data() + row * stride;
        for (int64_t column = 0; column < 3 * order; ++column) {
          const int64_t block = column / order;
          double sum = 0, weight = 0, largest = 0;
          for (int64_t k = 0; k < order; ++k) {
            const float value = in[block * order + k] - offset[block * order + k];
            const double a = matrices[(of_block[block] * order + k) * order + column % order];
            sum += value * a;
            weight += std::fabs(a);
            largest = std::max(largest, std::fabs(double{value}));
          }
          ASSERT_NEAR(out[column], sum, weight * largest / 32512 * 0.51 + std::fabs(sum) * 0x1p-22)
              << row << " " << column;
        }
        for (int64_t i = 3 * order; i < stride; ++i) ASSERT_EQ(out[i], in[i]);
      }
    });
  }
}

TEST(BlockTransform, TheLargestSumsOfBytesDoNotOverflow) {
  each_isa([&] {
    const int64_t order = 512;
    const BlockTransform transform(order, std::vector<float>(order * order, -127), {0});
    std::vector<float> x(order, 1e30f);
    transform.apply(x.data(), 1, order, 0, 1);
    for (const float y : x) ASSERT_NEAR(y, -127 * 512 * 1e30, 127 * 512 * 1e30 * 0x1p-20);
  });
}

TEST(BlockTransform, WhatIsNotFiniteStaysSoInItsBlockOnly) {
  for (const float odd : {std::nanf(""), HUGE_VALF}) {
    each_isa([&] {
      const BlockTransform transform(16, byte_matrices(1, 16, 3), {0, 0});
      std::vector<float> x(32, 1.0f), zero(32, 0.0f);
      x[20] = odd;
      transform.apply(x.data(), 1, 32, 0, 2);
      for (int i = 0; i < 32; ++i) ASSERT_EQ(std::isfinite(x[static_cast<size_t>(i)]), i < 16) << i;
      transform.apply(zero.data(), 1, 32, 0, 2);
      EXPECT_EQ(zero, std::vector<float>(32, 0.0f));
    });
  }
}

// One value between two steps, or a column whose values span more than 127 of them, and nothing is rounded.
TEST(BlockTransform, MatricesThatAreNoBytesAreNotRounded) {
  std::vector<float> matrix = byte_matrices(1, 64, 9);
  const auto bytes = [&] { return BlockTransform(64, matrix, {0}).bytes(); };
  EXPECT_EQ(bytes(), 64 * 64);
  matrix[100] *= 1.0625f;
  EXPECT_GT(bytes(), 64 * 64);
}

TEST(BlockTransform, DoesNotDependOnTheRowsBesideIt) {
  const std::vector<float> x = random_values(40 * 128, 6);
  each_isa([&] {
    for (const std::vector<float>& matrices : {random_values(2 * 64 * 64, 7), byte_matrices(2, 64, 8)}) {
      const BlockTransform transform(64, matrices, {0, 1});
      std::vector<float> together = x, alone = x;
      transform.apply(together.data(), 40, 128, 0, transform.blocks());
      for (int64_t row = 0; row < 40; ++row)
        for (int64_t block = 0; block < transform.blocks(); ++block)
          transform.apply(alone.data() + row * 128, 1, 128, block, block + 1);
      EXPECT_EQ(together, alone);
    }
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
