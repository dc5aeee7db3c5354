#include "ops/hadamard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "each_isa.h"

namespace quatrain::ops {
namespace {

struct Case {
  int64_t width, order;
  bool offset;
};

const Case kCases[] = {{1, 1, false},       {2, 2, false},     {8, 4, true},        {64, 64, false},
                       {576, 64, true},     {576, 576, false}, {1536, 1536, false}, {1536, 128, true},
                       {896, 896, false},   {200, 20, true},   {48, 24, false},     {36, 36, false},
                       {1024, 1024, false}, {512, 32, false},  {2560, 2560, true}};

// x D H / sqrt(order) by the definition, in FP64.
std::vector<double> reference(const std::vector<float>& x, const Case& c, uint64_t seed) {
  const std::vector<int8_t> h = hadamard_matrix(c.order);
  const std::vector<float> signs = hadamard_signs(c.width, c.order, seed, c.offset);
  std::vector<double> y(x.size(), 0.0);
  for (int64_t first = 0; first < c.width; first += c.order)
    for (int64_t i = 0; i < c.order; ++i)
      for (int64_t j = 0; j < c.order; ++j)
        y[first + j] +=
            double{x[first + i]} * signs[first + i] * h[i * c.order + j] / std::sqrt(double(c.order));
  return y;
}

TEST(Hadamard, EqualsTheDefinitionOnEveryIsa) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(fmt::format("width {}, order {}, offset {}", c.width, c.order, c.offset));
    const std::vector<float> x = random_values(c.width, 5);
    const std::vector<double> wanted = reference(x, c, 11);
    const HadamardTransform transform(c.width, c.order, 11, c.offset);
    double magnitude = 0;
    for (const float value : x) magnitude = std::max(magnitude, std::fabs(double{value}));
    // at most log2(inner) + base additions deep, and partial sums of at most sqrt(order) * max|x|
    const double bound = (std::log2(c.order) + double(factor_hadamard_order(c.order).base) + 3) * 0x1p-24 *
                         std::sqrt(double(c.order)) * magnitude;
    std::vector<float> first;
    each_isa([&] {
      std::vector<float> y = x;
      transform.apply_row(y.data());
      for (int64_t i = 0; i < c.width; ++i) ASSERT_NEAR(y[i], wanted[i], bound) << i;
      if (first.empty()) first = y;
      ASSERT_EQ(y, first);  // the same bits on every instruction set
    });
  }
}

TEST(Hadamard, RowsWithAStride) {
  const HadamardTransform transform(96, 96, 3, false);
  ThreadPool pool(2);
  const int64_t rows = 700, stride = 100;
  const std::vector<float> x = random_values(rows * stride, 6);
  each_isa([&] {
    std::vector<float> y = x;
    transform.apply(y.data(), rows, stride, pool);
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<float> one(x.begin() + row * stride, x.begin() + row * stride + 96);
      transform.apply_row(one.data());
      for (int64_t i = 0; i < 96; ++i) ASSERT_EQ(y[row * stride + i], one[i]);
      for (int64_t i = 96; i < stride; ++i) ASSERT_EQ(y[row * stride + i], x[row * stride + i]);
    }
  });
}

TEST(Hadamard, OffsetSpreadsTheFirstChannelEvenly) {
  const HadamardTransform transform(256, 128, 9, true);
  each_isa([&] {
    std::vector<float> x(256, 0.0f);
    x[128] = 64.0f;
    transform.apply_row(x.data());
    for (int i = 0; i < 128; ++i) EXPECT_EQ(x[i], 0.0f);
    for (int i = 128; i < 256; ++i) EXPECT_FLOAT_EQ(x[i], 64.0f / std::sqrt(128.0f));
  });
}

TEST(Hadamard, RefusesWidthsWithoutATransform) {
  EXPECT_THROW(HadamardTransform(13696, 13696, 1, false), Error);
  EXPECT_THROW(HadamardTransform(100, 64, 1, false), Error);
  EXPECT_THROW(HadamardTransform(0, 64, 1, false), Error);
  EXPECT_THROW(HadamardTransform(64, 0, 1, false), Error);
  EXPECT_NO_THROW(HadamardTransform(13696, 128, 1, false));
}

}  // namespace
}  // namespace quatrain::ops
