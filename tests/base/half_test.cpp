#include "base/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/rng.h"

namespace quatrain {
namespace {

// The value of FP16 bits by the definition of IEEE 754.
double value_of_fp16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Half, EveryFp16ValueIsReadAndWrittenBack) {
  for (int bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = fp16_to_float(half);
    if (std::isnan(value_of_fp16(half))) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(fp16_to_float(float_to_fp16(value)))) << bits;
      continue;
    }
    ASSERT_EQ(value, value_of_fp16(half)) << bits;
    ASSERT_EQ(std::signbit(value), bits >= 0x8000) << bits;
    ASSERT_EQ(float_to_fp16(value), half) << bits;
  }
}

// Between neighbours a < b every float goes to the nearer, the midpoint to the even one.
TEST(Half, RoundsToNearestEvenBetweenNeighbours) {
  for (int bits = 0; bits < 0x7BFF; ++bits) {
    const auto lower = static_cast<uint16_t>(bits), upper = static_cast<uint16_t>(bits + 1);
    const auto middle =
        static_cast<float>((value_of_fp16(lower) + value_of_fp16(upper)) / 2);  // exact in FP32
    const uint16_t even = bits % 2 == 0 ? lower : upper;
    ASSERT_EQ(float_to_fp16(middle), even) << bits;
    ASSERT_EQ(float_to_fp16(std::nextafter(middle, 0.0f)), lower) << bits;
    ASSERT_EQ(float_to_fp16(std::nextafter(middle, INFINITY)), upper) << bits;
    ASSERT_EQ(float_to_fp16(-middle), even | 0x8000) << bits;
  }
}

TEST(Half, Fp16Overflow) {
  EXPECT_EQ(float_to_fp16(65519.996f), 0x7BFF);
  EXPECT_EQ(float_to_fp16(65520.0f), 0x7C00);  // the midpoint to 2^16 rounds to even: infinity
  EXPECT_EQ(float_to_fp16(-1e30f), 0xFC00);
  EXPECT_EQ(float_to_fp16(INFINITY), 0x7C00);
  EXPECT_EQ(float_to_fp16(0x1p-26f), 0x0000);
  EXPECT_EQ(float_to_fp16(-std::numeric_limits<float>::denorm_min()), 0x8000);
}

TEST(Half, Bf16RoundsToNearestEven) {
  SplitMix64 random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
    const float rounded = bf16_to_float(float_to_bf16(value));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(rounded));
      continue;
    }
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const float down = std::bit_cast<float>(bits & 0xFFFF0000),
                up = std::bit_cast<float>((bits & 0xFFFF0000) + 0x10000);
    if (std::isinf(up) || std::isinf(value)) continue;
    const double below = std::fabs(double{value} - down), above = std::fabs(double{up} - value);
    if (below == above) {
      ASSERT_EQ(float_to_bf16(value) % 2, 0) << value;
    } else {
      ASSERT_EQ(rounded, below < above ? down : up) << value;
    }
  }
  EXPECT_EQ(float_to_bf16(INFINITY), 0x7F80);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7F800001u)))));
}

}  // namespace
}  // namespace quatrain
