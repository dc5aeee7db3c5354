#include "base/hadamard_matrix.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace quatrain {
namespace {

void expect_hadamard(const std::vector<int8_t>& h, int64_t n) {
  ASSERT_EQ(static_cast<int64_t>(h.size()), n * n);
  for (int64_t j = 0; j < n; ++j) ASSERT_EQ(h[j], 1) << "first row, column " << j;
  for (const int8_t entry : h) ASSERT_TRUE(entry == 1 || entry == -1);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t k = i; k < n; ++k) {
      int64_t dot = 0;
      for (int64_t j = 0; j < n; ++j) {
        dot += h[i * n + j] * h[k * n + j];
      }
      ASSERT_EQ(dot, i == k ? n : 0) << "rows " << i << " and " << k;
    }
}

struct Width {
  int64_t width, base;
};

// Widths of published models and the base order that each needs.
const Width kWidths[] = {{896, 28},    {3584, 28},   {14336, 28},  {28672, 28},  {4864, 76},   {9728, 76},
                         {768, 12},    {1536, 12},   {3072, 12},   {12288, 12},  {8960, 140},  {2560, 20},
                         {5120, 20},   {10240, 20},  {11008, 344}, {13824, 108}, {27648, 108}, {6912, 108},
                         {18944, 148}, {29568, 924}, {17408, 68},  {25600, 100}, {1152, 36},   {2304, 36},
                         {9216, 36},   {576, 36},    {3840, 60},   {15360, 60},  {5376, 84},   {21504, 84},
                         {10944, 684}, {1856, 464},  {2688, 84},   {4096, 1},    {1, 1}};

TEST(HadamardMatrix, LargestPowerOfTwoOfModelWidths) {
  for (const auto& [width, base] : kWidths) {
    const HadamardOrder order = factor_hadamard_order(width);
    EXPECT_EQ(order.base, base) << width;
    EXPECT_EQ(order.base << order.power, width);
    EXPECT_TRUE(hadamard_exists(width));
  }
}

TEST(HadamardMatrix, EveryBaseOfModelWidthsIsHadamard) {
  for (const int64_t base : {12, 20, 28, 36, 60, 68, 76, 84, 100, 108, 140, 148, 344, 464, 684, 924}) {
    SCOPED_TRACE(base);
    expect_hadamard(hadamard_base_matrix(base), base);
  }
}

TEST(HadamardMatrix, PrimePowersIncluded) {
  // 10 = 2 (2^2 + 1) is Paley II over no field of odd order; 52 = 2 (5^2 + 1), 244 = 3^5 + 1, 164 = 2 (3^4 +
  // 1)
  for (const int64_t base : {28, 52, 100, 164, 244, 344}) {
    SCOPED_TRACE(base);
    expect_hadamard(hadamard_base_matrix(base), base);
  }
}

TEST(HadamardMatrix, WholeMatrix) {
  for (const int64_t order : {1, 2, 4, 8, 64, 24, 40, 56, 72, 576}) {
    SCOPED_TRACE(order);
    expect_hadamard(hadamard_matrix(order), order);
  }
}

TEST(HadamardMatrix, UnknownOrdersNameTheAlternative) {
  for (const int64_t order : {13696, 3, 6, 92, 100 * 3 + 2}) {
    EXPECT_FALSE(hadamard_exists(order));
    try {
      factor_hadamard_order(order);
      FAIL() << order;
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(std::to_string(order)), std::string::npos);
      EXPECT_NE(text.find("block-diagonal transform of order " + std::to_string(order & -order)),
                std::string::npos);
    }
  }
  for (const int64_t order : {int64_t{0}, int64_t{-4}, INT64_MIN}) {
    EXPECT_FALSE(hadamard_exists(order));
    EXPECT_THROW(factor_hadamard_order(order), Error);
  }
  EXPECT_THROW(hadamard_matrix(int64_t{1} << 40), Error);
}

TEST(HadamardMatrix, SignsFollowTheSeed) {
  const auto plain = hadamard_signs(512, 128, 7, false);
  EXPECT_EQ(plain, hadamard_signs(512, 512, 7, false));
  EXPECT_NE(plain, hadamard_signs(512, 128, 8, false));
  const auto offset = hadamard_signs(512, 128, 7, true);
  for (int i = 0; i < 512; ++i) EXPECT_EQ(offset[i], i % 128 == 0 ? 1.0f : plain[i]);
  EXPECT_THROW(hadamard_signs(500, 128, 7, false), Error);
}

}  // namespace
}  // namespace quatrain
