#include "ops/nibble_matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/half.h"
#include "base/rng.h"
#include "ops/cpu/isa.h"

namespace quatrain::ops {
namespace {

constexpr Isa kIsas[] = {Isa::Generic, Isa::Avx2, Isa::AvxVnni, Isa::Avx512Vnni};

enum class Budget { None, All, Random, Corner };

struct Shape {
  int64_t tokens, rows, columns;
  int64_t weight_group, activation_group, block;
  int bits;
  Budget budget;

  std::string text() const {
    return fmt::format("{} x {} x {}, weight group {}, activation group {}, block {}, A{}, budget {}", tokens,
                       rows, columns, weight_group, activation_group, block, bits, static_cast<int>(budget));
  }
};

int64_t whole_if_zero(int64_t group, int64_t columns) {
  return group == 0 ? columns : std::min(group, columns);
}

// Random codes, extreme values included: a fifth of the rows are all -128 or 127 where they have a residual.
NibblePlanes random_planes(const Shape& shape, SplitMix64& random) {
  NibblePlanes planes;
  planes.rows = shape.rows;
  planes.columns = shape.columns;
  planes.weight_group = shape.weight_group;
  planes.residual_block = shape.block;
  planes.hi.resize(shape.rows * ((shape.columns + 1) / 2));
  for (int64_t row = 0; row < shape.rows; ++row) {
    const uint64_t kind = random.below(10);
    for (int64_t b = 0; b < (shape.columns + 1) / 2; ++b)
      planes.hi[row * ((shape.columns + 1) / 2) + b] = kind == 0   ? 0x88
                                                       : kind == 1 ? 0x77
                                                                   : static_cast<uint8_t>(random.next());
  }
  for (int64_t i = 0; i < shape.rows * planes.groups(); ++i) {
    const auto scale = static_cast<float>(0.01 + random.uniform());
    planes.scale.push_back(shape.weight_group > 0 ? fp16_to_float(float_to_fp16(scale)) : scale);
  }
  const int64_t blocks = planes.block_rows() * planes.block_columns();
  for (int64_t b = 0; b < blocks; ++b) {
    const bool present = shape.budget == Budget::All ||
                         (shape.budget == Budget::Random && random.below(3) == 0) ||
                         (shape.budget == Budget::Corner && b == blocks - 1);
    if (present) planes.residual_index.push_back(static_cast<int32_t>(b));
  }
  planes.lo.resize(planes.residual_index.size() * kResidualRows * ((shape.block + 1) / 2));
  for (uint8_t& byte : planes.lo) byte = random.below(4) == 0 ? 0xFF : static_cast<uint8_t>(random.next());
  if (random.below(2) == 0)
    for (int64_t row = 0; row < shape.rows; ++row) planes.bias.push_back(static_cast<float>(random.normal()));
  return planes;
}

QuantizedActivations random_activations(const Shape& shape, SplitMix64& random) {
  QuantizedActivations x;
  x.tokens = shape.tokens;
  x.width = shape.columns;
  x.group = whole_if_zero(shape.activation_group, shape.columns);
  x.groups = (x.width + x.group - 1) / x.group;
  x.stride = (x.width + 63) / 64 * 64;
  x.bits = shape.bits;
  x.codes.resize(x.tokens * x.stride);
  x.scale.resize(x.tokens * x.groups);
  x.zero.resize(x.tokens * x.groups);
  const int most = (1 << shape.bits) - 1;
  std::memset(x.codes.data(), 0, x.codes.size());
  for (int64_t t = 0; t < x.tokens; ++t) {
    const bool full = random.below(4) == 0;
    for (int64_t k = 0; k < x.width; ++k)
      x.codes[t * x.stride + k] = static_cast<uint8_t>(full ? most : random.below(most + 1));
  }
  for (int64_t i = 0; i < x.tokens * x.groups; ++i) {
    x.scale[i] = static_cast<float>(0.001 + random.uniform());
    const uint64_t kind = random.below(4);
    // wide groups have zero within their range
    x.zero[i] = static_cast<int16_t>(x.group > kWidestFreeGroup ? static_cast<int64_t>(random.below(most + 1))
                                     : kind == 0                ? 32767
                                     : kind == 1                ? -32767
                                                 : static_cast<int64_t>(random.below(65535)) - 32767);
  }
  return x;
}

struct Reference {
  std::vector<int32_t> sums;  // P [tokens, rows, groups]
  std::vector<float> y;       // the order of operations that nibble_matmul.h states
  std::vector<double> exact;  // in FP64
  std::vector<double> bound;  // on |y - exact|
};

Reference reference(const NibblePlanes& planes, const QuantizedActivations& x) {
  const int64_t group = std::min(whole_if_zero(planes.weight_group, planes.columns), x.group);
  const int64_t groups = (planes.columns + group - 1) / group;
  const bool row_scale = planes.groups() == 1;
  const bool one_zero = !row_scale && x.groups == 1 && x.width > kWidestFreeGroup;  // of all weight groups
  std::vector<int> code(planes.rows * planes.columns);
  for (int64_t o = 0; o < planes.rows; ++o)
    for (int64_t k = 0; k < planes.columns; ++k) code[o * planes.columns + k] = planes.code(o, k);
  Reference result;
  for (int64_t t = 0; t < x.tokens; ++t)
    for (int64_t o = 0; o < planes.rows; ++o) {
      float acc = 0;
      double exact = 0, magnitude = 0;
      if (one_zero) {
        double row_sum = 0;  // exact: W is rounded once
        for (int64_t k = 0; k < planes.columns; ++k)
          row_sum += double{planes.scale[o * planes.groups() + k / planes.weight_group]} *
                     code[o * planes.columns + k];
        acc = -static_cast<float>(x.zero[t]) * static_cast<float>(row_sum);
      }
      for (int64_t g = 0; g < groups; ++g) {
        int64_t p = 0, s = 0;
        for (int64_t k = g * group; k < std::min((g + 1) * group, planes.columns); ++k) {
          p += int64_t{x.codes[t * x.stride + k]} * code[o * planes.columns + k];
          s += code[o * planes.columns + k];
        }
        const int64_t at = t * x.groups + g * group / x.group;
        const int64_t difference = p - x.zero[at] * s;
        result.sums.push_back(static_cast<int32_t>(p));
        const float scale =
            planes.scale[o * planes.groups() + (row_scale ? 0 : g * group / planes.weight_group)];
        float term = static_cast<float>(difference);
        if (!row_scale) term *= scale;
        acc = one_zero ? std::fma(scale, static_cast<float>(p), acc) : std::fma(x.scale[at], term, acc);
        exact += double{x.scale[at]} * scale / 16 * static_cast<double>(difference);
        magnitude += double{x.scale[at]} * scale / 16 *
                     (one_zero ? std::fabs(static_cast<double>(p)) +
                                     std::fabs(static_cast<double>(x.zero[at]) * static_cast<double>(s))
                               : std::fabs(static_cast<double>(difference)));
      }
      const float bias = planes.bias.empty() ? 0.0f : planes.bias[o];
      const float factor = one_zero ? x.scale[t] : row_scale ? planes.scale[o] : 1.0f;
      result.y.push_back(std::fma(acc, factor * 0.0625f, bias));
      result.exact.push_back(exact + bias);
      // each term is rounded twice and each addition once, to 2^-24 of at most the sum of magnitudes
      result.bound.push_back((static_cast<double>(groups) + 4) * 0x1p-24 * (magnitude + std::fabs(bias)) +
                             1e-30);
    }
  return result;
}

void check(const Shape& shape, uint64_t seed, ThreadPool& pool) {
  SCOPED_TRACE(shape.text());
  SplitMix64 random(seed);
  const NibblePlanes planes = random_planes(shape, random);
  const QuantizedActivations x = random_activations(shape, random);
  const Reference wanted = reference(planes, x);
  const auto matrix = pack_nibble_matrix(planes, shape.activation_group, pool);
  ASSERT_EQ(matrix->rows(), shape.rows);
  ASSERT_EQ(matrix->columns(), shape.columns);
  const Isa before = active_isa();
  for (const Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    SCOPED_TRACE(name_of(isa));
    set_isa(isa);
    std::vector<int32_t> sums(wanted.sums.size(), 0x5A5A5A5A);
    nibble_matmul_sums(*matrix, x, pool, sums.data());
    ASSERT_EQ(sums, wanted.sums);
    const int64_t stride = shape.rows + 3;  // what lies between rows stays as it was
    std::vector<float> y(shape.tokens * stride, 77.0f);
    nibble_matmul(*matrix, x, pool, y.data(), stride);
    for (int64_t t = 0; t < shape.tokens; ++t) {
      for (int64_t o = 0; o < shape.rows; ++o) {
        const int64_t at = t * shape.rows + o;
        ASSERT_EQ(y[t * stride + o], wanted.y[at]) << "token " << t << ", row " << o;
        ASSERT_NEAR(y[t * stride + o], wanted.exact[at], wanted.bound[at]) << "token " << t << ", row " << o;
      }
      for (int64_t o = shape.rows; o < stride; ++o) ASSERT_EQ(y[t * stride + o], 77.0f);
    }
  }
  set_isa(before);
}

TEST(NibbleMatmul, EveryGroupSizeThatNests) {
  ThreadPool pool(2);
  uint64_t seed = 1;
  for (const int64_t weight_group : {32, 64, 128, 256, 0})
    for (const int64_t activation_group : {32, 64, 128, 256, 0})
      for (const int64_t block : {32, 64, 128})
        for (const int bits : {4, 8}) {
          const auto budget = static_cast<Budget>(seed % 4);
          check({static_cast<int64_t>(1 + seed % 3), 50, 576, weight_group, activation_group, block, bits,
                 budget},
                seed, pool);
          ++seed;
        }
}

TEST(NibbleMatmul, OddShapes) {
  ThreadPool pool(2);
  uint64_t seed = 1000;
  for (const int64_t rows : {1, 15, 16, 17, 31, 32, 33, 64, 95})
    for (const int64_t columns : {1, 2, 7, 8, 9, 63, 64, 65, 127, 130, 333, 520})
      for (const int64_t activation_group : {64, 0}) {
        const auto budget = static_cast<Budget>(seed % 4);
        check({static_cast<int64_t>(1 + seed % 5), rows, columns, seed % 3 == 0 ? 64 : 0, activation_group,
               64, seed % 2 == 0 ? 4 : 8, budget},
              seed, pool);
        ++seed;
      }
}

TEST(NibbleMatmul, UnusualGroups) {
  ThreadPool pool(2);
  uint64_t seed = 2000;
  const int64_t sizes[][3] = {{96, 48, 96}, {12, 36, 72},  {0, 96, 32}, {9, 3, 27},      {5, 5, 5},
                              {0, 0, 1000}, {100, 50, 25}, {1, 2, 4},   {300, 300, 100}, {520, 260, 130}};
  for (const auto& [weight_group, activation_group, block] : sizes)
    for (const int64_t columns : {95, 300, 577})
      for (const Budget budget : {Budget::None, Budget::All, Budget::Random, Budget::Corner})
        check({2, 37, columns, weight_group, activation_group, block, 8, budget}, seed++, pool);
}

TEST(NibbleMatmul, EveryNumberOfTokens) {
  ThreadPool pool(2);
  for (const int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 17, 127, 130, 261}) {
    check({tokens, 70, 192, 0, 64, 64, 8, Budget::Random}, 3000 + tokens, pool);
    check({tokens, 70, 320, 64, 0, 64, 8, Budget::Random}, 3300 + tokens, pool);
    check({tokens, 70, 320, 64, 0, 64, 8, Budget::None}, 3600 + tokens, pool);
  }
}

TEST(NibbleMatmul, ManyTokensInEveryKindOfGroup) {
  ThreadPool pool(2);
  uint64_t seed = 5000;
  const int64_t groups[][3] = {{0, 64, 64},   {64, 0, 64}, {128, 0, 128},  {64, 128, 32}, {32, 32, 32},
                               {100, 50, 25}, {9, 3, 27},  {240, 240, 80}, {0, 0, 64},    {256, 256, 64}};
  for (const auto& [weight_group, activation_group, block] : groups)
    for (const int64_t columns : {320, 577})
      for (const Budget budget : {Budget::None, Budget::All, Budget::Random, Budget::Corner})
        for (const int bits : {4, 8})
          check({static_cast<int64_t>(16 + seed % 17), 70, columns, weight_group, activation_group, block,
                 bits, budget},
                seed++, pool);
}

TEST(NibbleMatmul, WholeRowsWidestInUse) {
  ThreadPool pool(2);
  for (const Budget budget : {Budget::None, Budget::All})
    check({2, 17, 29568, 0, 0, 128, 8, budget}, 4000, pool);
}

TEST(NibbleMatmul, ARowDoesNotDependOnItsBatch) {
  ThreadPool pool(2);
  const Shape shape{21, 75, 640, 64, 64, 64, 8, Budget::Random};
  SplitMix64 random(7);
  const NibblePlanes planes = random_planes(shape, random);
  const QuantizedActivations x = random_activations(shape, random);
  const auto matrix = pack_nibble_matrix(planes, shape.activation_group, pool);
  const Isa before = active_isa();
  for (const Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    set_isa(isa);
    std::vector<float> together(shape.tokens * shape.rows);
    nibble_matmul(*matrix, x, pool, together.data(), shape.rows);
    for (int64_t t = 0; t < shape.tokens; ++t) {
      QuantizedActivations one;
      one.tokens = 1;
      one.width = x.width, one.group = x.group, one.groups = x.groups, one.stride = x.stride,
      one.bits = x.bits;
      one.codes.resize(x.stride), one.scale.resize(x.groups), one.zero.resize(x.groups);
      std::copy_n(x.codes.data() + t * x.stride, x.stride, one.codes.data());
      std::copy_n(x.scale.data() + t * x.groups, x.groups, one.scale.data());
      std::copy_n(x.zero.data() + t * x.groups, x.groups, one.zero.data());
      std::vector<float> alone(shape.rows);
      nibble_matmul(*matrix, one, pool, alone.data(), shape.rows);
      for (int64_t o = 0; o < shape.rows; ++o)
        ASSERT_EQ(alone[o], together[t * shape.rows + o]) << t << ' ' << o;
    }
  }
  set_isa(before);
}

TEST(NibbleMatmul, PackedBytesAreThoseOfTheArtifact) {
  ThreadPool pool(1);
  SplitMix64 random(8);
  const Shape shape{1, 1536, 576, 0, 64, 64, 8, Budget::None};
  const auto matrix = pack_nibble_matrix(random_planes(shape, random), 64, pool);
  const int64_t nibbles = 1536 * 576 / 2;
  EXPECT_GE(matrix->bytes(), nibbles);
  EXPECT_LE(matrix->bytes(), nibbles + 1536 * (576 / 64 * 2 + 8 + 1) + 4096);  // sums, scale and bias, flags
}

std::string error_of(const NibblePlanes& planes, int64_t activation_group) {
  ThreadPool pool(1);
  try {
    pack_nibble_matrix(planes, activation_group, pool);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(NibbleMatmul, RefusesWhatItCannotCompute) {
  SplitMix64 random(9);
  NibblePlanes planes = random_planes({1, 20, 600, 64, 0, 64, 8, Budget::Random}, random);
  EXPECT_NE(error_of(planes, 96).find("weight group 64, activation group 96 and residual block 64"),
            std::string::npos);
  EXPECT_EQ(error_of(planes, 128), "");

  NibblePlanes wide;
  wide.rows = 1, wide.columns = 65800;
  wide.hi.resize(32900), wide.scale = {1.0f};
  EXPECT_NE(error_of(wide, 0).find("65800"), std::string::npos);
  EXPECT_EQ(error_of(wide, 128), "");

  NibblePlanes broken = planes;
  broken.hi.pop_back();
  EXPECT_NE(error_of(broken, 64).find("hi has"), std::string::npos);
  broken = planes;
  broken.scale.push_back(1);
  EXPECT_NE(error_of(broken, 64).find("scale has"), std::string::npos);
  broken = planes;
  broken.lo.pop_back();
  EXPECT_NE(error_of(broken, 64).find("lo has"), std::string::npos);
  broken = planes;
  broken.bias.assign(3, 0.0f);
  EXPECT_NE(error_of(broken, 64).find("bias has"), std::string::npos);
  broken = planes;
  std::swap(broken.residual_index[0], broken.residual_index[1]);
  EXPECT_NE(error_of(broken, 64).find("out of order"), std::string::npos);
  broken = planes;
  broken.residual_index.back() = 1000000;
  EXPECT_NE(error_of(broken, 64).find("1000000"), std::string::npos);
  broken = planes;
  broken.scale[5] = 0.1f;
  EXPECT_NE(error_of(broken, 64).find("not an FP16 value"), std::string::npos);
  broken = planes;
  broken.rows = -1;
  EXPECT_NE(error_of(broken, 64), "");
  broken = planes;
  broken.residual_block = 0;
  EXPECT_NE(error_of(broken, 64), "");

  ThreadPool pool(1);
  const auto matrix = pack_nibble_matrix(planes, 64, pool);
  const QuantizedActivations x = random_activations({1, 20, 600, 64, 128, 64, 8, Budget::None}, random);
  std::vector<float> y(20);
  EXPECT_THROW(nibble_matmul(*matrix, x, pool, y.data(), 20), Error);
}

}  // namespace
}  // namespace quatrain::ops
