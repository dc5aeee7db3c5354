#include "base/number_format.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <vector>

#include "base/rng.h"

namespace quatrain {
namespace {

// The group's definition in FP64 where FP32 rounding cannot matter to the check at hand.
double restored(float x, QuantizedGroup group, int bits) {
  return double{group.scale} * (quantize_value(x, group, bits) - group.zero);
}

TEST(NumberFormat, KnownGroups) {
  const float ramp[] = {0, 1, 2, 15};
  QuantizedGroup group = quantize_group(ramp, 4, 4, false, 4);
  EXPECT_EQ(group.scale, 1.0f);
  EXPECT_EQ(group.zero, 0);
  for (const float x : ramp) EXPECT_EQ(quantize_value(x, group, 4), static_cast<int>(x));

  const float offset[] = {100, 107.5f, 115};  // zero outside the range: a large negative zero point
  group = quantize_group(offset, 3, 4, false, 3);
  EXPECT_EQ(group.scale, 1.0f);
  EXPECT_EQ(group.zero, -100);
  EXPECT_EQ(quantize_value(100, group, 4), 0);
  EXPECT_EQ(quantize_value(107.5f, group, 4), 8);  // half to even: rint(107.5) = 108
  EXPECT_EQ(quantize_value(106.5f, group, 4), 6);
  EXPECT_EQ(quantize_value(115, group, 4), 15);

  const float balanced[] = {-7, 3.5f, 6.5f};
  group = quantize_group(balanced, 3, 4, true, 3);
  EXPECT_EQ(group.scale, 1.0f);
  EXPECT_EQ(group.zero, 8);
  EXPECT_EQ(quantize_value(-7, group, 4), 1);
  EXPECT_EQ(quantize_value(3.5f, group, 4), 12);
  EXPECT_EQ(quantize_value(6.5f, group, 4), 14);
  group = quantize_group(balanced, 3, 8, true, 3);
  EXPECT_EQ(group.scale, 7.0f / 127.0f);
  EXPECT_EQ(group.zero, 128);
}

TEST(NumberFormat, GroupsWiderThan256HoldZero) {
  const float x[] = {100, 115};
  EXPECT_EQ(quantize_group(x, 2, 4, false, 256).zero, -100);
  const QuantizedGroup wide = quantize_group(x, 2, 4, false, 257);
  EXPECT_EQ(wide.zero, 0);
  EXPECT_EQ(wide.scale, 115.0f / 15.0f);
  const float negative[] = {-115, -100};
  EXPECT_EQ(quantize_group(negative, 2, 4, false, 257).zero, 15);
}

TEST(NumberFormat, Guards) {
  const float zeros[] = {0.0f, -0.0f, 0.0f};
  for (const bool symmetric : {false, true}) {
    const QuantizedGroup group = quantize_group(zeros, 3, 4, symmetric, 3);
    EXPECT_EQ(group.scale, 1.0f);
    EXPECT_EQ(group.zero, 0);
    EXPECT_EQ(quantize_value(-0.0f, group, 4), 0);
  }
  // a pure offset: zero fits int16 and the value is right to half a step
  for (const float value : {1.0f, -3.25e7f, 1e-30f, FLT_MAX, -FLT_MAX, FLT_MIN}) {
    const QuantizedGroup group = quantize_group(&value, 1, 4, false, 1);
    EXPECT_GE(group.scale, FLT_MIN);
    EXPECT_LE(std::abs(group.zero), 32767) << value;
    EXPECT_NEAR(restored(value, group, 4), value, group.scale / 2.0) << value;
  }
  const float tiny[] = {0, FLT_TRUE_MIN};
  EXPECT_EQ(quantize_group(tiny, 2, 8, false, 2).scale, FLT_MIN);
  const float whole[] = {-FLT_MAX, 0, FLT_MAX};  // max - min overflows
  for (const int bits : {4, 8}) {
    const QuantizedGroup group = quantize_group(whole, 3, bits, false, 3);
    EXPECT_TRUE(std::isfinite(group.scale));
    for (const float x : whole) EXPECT_NEAR(restored(x, group, bits), x, group.scale * 0.51);
  }
}

TEST(NumberFormat, ValuesOutsideTheGroupClamp) {
  const QuantizedGroup group{1.0f, 3};
  for (const float x : {1e30f, FLT_MAX, INFINITY}) EXPECT_EQ(quantize_value(x, group, 8), 255);
  for (const float x : {-1e30f, -FLT_MAX, -INFINITY, NAN}) EXPECT_EQ(quantize_value(x, group, 8), 0);
}

TEST(NumberFormat, ErrorIsAtMostHalfAStep) {
  SplitMix64 random(1);
  for (int round = 0; round < 2000; ++round) {
    const int64_t count = 1 + static_cast<int64_t>(random.below(300));
    const int bits = round % 2 == 0 ? 4 : 8;
    const bool symmetric = round % 3 == 0;
    std::vector<float> x(count);
    const double spread = std::exp2(double(random.below(40)) - 20), shift = random.normal() * spread * 10;
    for (float& value : x) value = static_cast<float>(random.normal() * spread + shift);
    const QuantizedGroup group = quantize_group(x.data(), count, bits, symmetric, count);
    ASSERT_LE(std::abs(group.zero), 32767);
    double magnitude = 0;
    for (const float value : x) magnitude = std::max(magnitude, std::fabs(double{value}));
    // z is rounded too, so an extreme may clamp half a step further; x / s is rounded to 2^-24 of itself
    for (const float value : x)
      ASSERT_LE(std::fabs(restored(value, group, bits) - value),
                group.scale * (symmetric ? 0.5 : 1.0) + magnitude * 0x1p-22)
          << value << " in a group of " << count;
  }
}

NibblePlanes small_planes() {
  NibblePlanes planes;
  planes.rows = 18;
  planes.columns = 11;  // odd: the last byte of a row holds one nibble
  planes.weight_group = 4;
  planes.residual_block = 5;
  planes.hi.assign(18 * 6, 0);
  for (size_t i = 0; i < planes.hi.size(); ++i) planes.hi[i] = static_cast<uint8_t>(i * 37 + 11);
  planes.scale.resize(18 * 3);
  for (size_t i = 0; i < planes.scale.size(); ++i) planes.scale[i] = 0.25f * static_cast<float>(1 + i % 5);
  planes.residual_index = {1, 2, 4};
  planes.lo.assign(3 * 16 * 3, 0);
  for (size_t i = 0; i < planes.lo.size(); ++i) planes.lo[i] = static_cast<uint8_t>(i * 91 + 5);
  return planes;
}

TEST(NumberFormat, PlanesByHand) {
  const NibblePlanes planes = small_planes();
  EXPECT_EQ(planes.groups(), 3);
  EXPECT_EQ(planes.block_rows(), 2);
  EXPECT_EQ(planes.block_columns(), 3);
  // row 3, column 7: byte 3 * 6 + 3 = 21 holds 21 * 37 + 11 = 788 = 0x314 -> 0x14, high half 1 -> hi = 1;
  // block row 0, block column 1: block 1 is stored first, row 3, in-block column 2: byte 3 * 3 + 1 = 10 holds
  // 915 = 0x393 -> 0x93, low half 3
  EXPECT_EQ(planes.code(3, 7), 16 * 1 + 3);
  // row 0, column 1: byte 0 holds 11 = 0x0B, high half 0; block 0 has no residual
  EXPECT_EQ(planes.code(0, 1), 0);
  EXPECT_EQ(planes.code(0, 0), 16 * (0xB - 16));
  std::vector<float> row(11);
  for (int64_t r = 0; r < planes.rows; ++r) {
    planes.dequantize_row(r, row.data());
    for (int64_t c = 0; c < planes.columns; ++c) {
      ASSERT_GE(planes.code(r, c), -128);
      ASSERT_LE(planes.code(r, c), 127);
      ASSERT_EQ(row[c], planes.scale[r * 3 + c / 4] * static_cast<float>(planes.code(r, c)) / 16)
          << r << ' ' << c;
    }
  }
}

}  // namespace
}  // namespace quatrain
