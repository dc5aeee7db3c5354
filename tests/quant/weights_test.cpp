// The weight stage against straightforward recomputation in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/half.h"
#include "base/rng.h"
#include "quant/residual/select.h"
#include "quant/weights/planes.h"
#include "quant/weights/rtn.h"
#include "quant/weights/scales.h"

namespace quatrain {
namespace {

std::vector<float> random_weights(int64_t count, uint64_t seed, float outlier = 1) {
  SplitMix64 rng(seed);
  std::vector<float> weights(static_cast<size_t>(count));
  for (float& weight : weights) {
    weight = static_cast<float>(rng.normal() * 0.05);
    if (rng.below(50) == 0) weight *= outlier;
  }
  return weights;
}

RowReader reader_of(const std::vector<float>& weights, int64_t columns) {
  return [&weights, columns](int64_t begin, int64_t end) {
    return std::vector<float>(weights.begin() + begin * columns, weights.begin() + end * columns);
  };
}

QuantizedMatrix quantize(const std::vector<float>& weights, int64_t rows, int64_t columns,
                         const WeightFormat& format, int threads = 2) {
  ThreadPool pool(threads);
  return quantize_rtn("layer.q", rows, columns, reader_of(weights, columns), format, pool);
}

int clamp_round(double x, int low, int high) {
  return std::clamp(static_cast<int>(std::nearbyint(x)), low, high);
}

TEST(Scales, LargestValue) {
  const std::vector<float> weights = {0.1f, -0.7f, 0.3f};
  EXPECT_EQ(weight_scale(weights, {4, false, false}), 0.7f / 7.0f);
  EXPECT_EQ(weight_scale(weights, {8, false, false}), 16.0f * (0.7f / 127.0f));
  EXPECT_EQ(weight_scale(weights, {4, false, true}), fp16_to_float(float_to_fp16(0.7f / 7.0f)));
}

TEST(Scales, ZeroTinyAndHugeGroups) {
  EXPECT_EQ(weight_scale(std::vector<float>(9, 0.0f), {4, true, true}), 1.0f);
  EXPECT_EQ(weight_scale(std::vector<float>(9, 1e-12f), {4, true, true}), 0x1p-24f);  // FP16 would give 0
  EXPECT_GT(weight_scale(std::vector<float>(9, 1e-44f), {4, true, false}), 0.0f);
  EXPECT_THROW(weight_scale(std::vector<float>(9, 1e6f), {4, false, true}), Error);
  EXPECT_GT(weight_scale(std::vector<float>(9, 3e38f), {8, false, false}), 0.0f);
}

// The search recomputed in FP64 with std::pow. FP32 sums of n terms err by at most about n 2^-24 relative,
// and the fast power by a few 2^-24: the chosen clip's true error lies within 1e-4 of the least.
TEST(Scales, ClipSearchFindsTheLeastError) {
  for (const int bits : {4, 8})
    for (const int64_t count : {1, 7, 16, 33, 64, 576, 1000}) {
      const std::vector<float> weights = random_weights(count, static_cast<uint64_t>(count), 6);
      const auto error_of = [&](double scale) {
        const double step = bits == 4 ? scale : scale / 16;
        double sum = 0;
        for (const float w : weights)
          sum += std::pow(
              std::fabs(step * clamp_round(w / step, bits == 4 ? -8 : -128, bits == 4 ? 7 : 127) - w), 2.4);
        return sum;
      };
      float largest = 0;
      for (const float w : weights) largest = std::max(largest, std::fabs(w));
      double least = std::numeric_limits<double>::infinity();
      for (int percent = 100; percent >= 21; --percent)
        least = std::min(least, error_of((bits == 4 ? largest / 7.0f : 16.0f * (largest / 127.0f)) *
                                         (static_cast<float>(percent) / 100.0f)));
      const float scale = weight_scale(weights, {bits, true, false});
      EXPECT_LE(error_of(scale), least * (1 + 1e-4) + 1e-30) << bits << " bits, " << count;
      const double fast = clip_error(weights, scale, bits, std::numeric_limits<float>::infinity());
      EXPECT_NEAR(fast, error_of(scale), 1e-4 * error_of(scale) + 1e-12) << bits << " bits, " << count;
    }
}

TEST(Rtn, CodesAndScales) {
  for (const int bits : {4, 8})
    for (const auto& [rows, columns, group, block] : std::vector<std::array<int64_t, 4>>{
             {33, 96, 0, 128}, {16, 576, 64, 128}, {5, 105, 0, 32}, {40, 64, 16, 16}}) {
      const std::vector<float> weights = random_weights(rows * columns, 3);
      WeightFormat format;
      format.bits = bits;
      format.group = group;
      format.residual_block = block;
      const QuantizedMatrix matrix = quantize(weights, rows, columns, format);
      ASSERT_EQ(matrix.planes.groups(), group == 0 ? 1 : columns / group);
      double error = 0, norm = 0;
      for (int64_t row = 0; row < rows; ++row) {
        std::vector<float> restored(static_cast<size_t>(columns));
        matrix.planes.dequantize_row(row, restored.data());
        for (int64_t column = 0; column < columns; ++column) {
          const int64_t width = group == 0 ? columns : group, g = column / width;
          float largest = 0;
          for (int64_t k = g * width; k < (g + 1) * width; ++k)
            largest = std::max(largest, std::fabs(weights[static_cast<size_t>(row * columns + k)]));
          float scale = bits == 4 ? largest / 7.0f : 16.0f * (largest / 127.0f);
          if (group != 0) scale = fp16_to_float(float_to_fp16(scale));
          ASSERT_EQ(matrix.planes.scale[static_cast<size_t>(row * matrix.planes.groups() + g)], scale);
          const float w = weights[static_cast<size_t>(row * columns + column)];
          const int code =
              bits == 4 ? 16 * clamp_round(w / scale, -8, 7) : clamp_round(16 * (w / scale), -128, 127);
          ASSERT_EQ(matrix.planes.code(row, column), code) << row << "," << column;
          const double difference = static_cast<double>(restored[static_cast<size_t>(column)]) - w;
          error += difference * difference;
          norm += static_cast<double>(w) * w;
        }
      }
      EXPECT_NEAR(matrix.squared_error, error, 1e-5 * error);
      EXPECT_NEAR(matrix.squared_norm, norm, 1e-9 * norm);
      EXPECT_EQ(matrix.planes.residual_index.empty(), bits == 4);
    }
}

TEST(Rtn, HalfToEvenAndZeroRows) {
  std::vector<float> weights(2 * 8, 0.0f);
  weights[0] = 7;     // scale 1
  weights[1] = 0.5f;  // ties go to even
  weights[2] = 1.5f;
  weights[3] = -2.5f;
  const QuantizedMatrix matrix = quantize(weights, 2, 8, {});
  EXPECT_EQ(matrix.planes.code(0, 0), 112);
  EXPECT_EQ(matrix.planes.code(0, 1), 0);
  EXPECT_EQ(matrix.planes.code(0, 2), 32);
  EXPECT_EQ(matrix.planes.code(0, 3), -32);
  EXPECT_EQ(matrix.planes.scale[1], 1.0f);
  EXPECT_EQ(matrix.planes.code(1, 5), 0);
}

TEST(Rtn, ResidualBlocksFollowTheirScore) {
  const int64_t rows = 37, columns = 160,
                block = 32;  // 3 x 5 blocks, the last rows and none of the columns cut
  const std::vector<float> weights = random_weights(rows * columns, 11, 8);
  WeightFormat format;
  format.residual_block = block;
  const QuantizedMatrix plain = quantize(weights, rows, columns, format);
  std::vector<double> norms(15), largest(15);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column) {
      const auto index = static_cast<size_t>(row / 16 * 5 + column / block);
      const double w = weights[static_cast<size_t>(row * columns + column)];
      const double residual =
          plain.planes.scale[static_cast<size_t>(row)] * plain.planes.code(row, column) / 16.0 - w;
      norms[index] += residual * residual;
      largest[index] = std::max(largest[index], std::fabs(w));
    }
  for (const std::string score : {"residual-norm", "weight-max", "random"}) {
    format.residual_score = score;
    format.residual_budget = 0.2;
    const QuantizedMatrix matrix = quantize(weights, rows, columns, format);
    ASSERT_EQ(matrix.planes.residual_index.size(), 3u) << score;
    EXPECT_LT(matrix.squared_error, plain.squared_error);
    if (score != "random") {
      const std::vector<double>& scores = score == "weight-max" ? largest : norms;
      double worst_kept = 1e9, best_left = 0;
      for (int32_t b = 0; b < 15; ++b) {
        const bool kept =
            std::count(matrix.planes.residual_index.begin(), matrix.planes.residual_index.end(), b) > 0;
        if (kept) worst_kept = std::min(worst_kept, scores[static_cast<size_t>(b)]);
        if (!kept) best_left = std::max(best_left, scores[static_cast<size_t>(b)]);
      }
      EXPECT_GE(worst_kept, best_left * (1 - 1e-6)) << score;
    }
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column) {
        const auto b = static_cast<int32_t>(row / 16 * 5 + column / block);
        const bool kept =
            std::count(matrix.planes.residual_index.begin(), matrix.planes.residual_index.end(), b) > 0;
        const float scale = matrix.planes.scale[static_cast<size_t>(row)];
        const float steps = weights[static_cast<size_t>(row * columns + column)] / scale;
        ASSERT_EQ(matrix.planes.code(row, column),
                  kept ? clamp_round(16 * steps, -128, 127) : 16 * clamp_round(steps, -8, 7));
      }
    format.residual_budget = 1;
    EXPECT_EQ(quantize(weights, rows, columns, format).planes.residual_index.size(), 15u);
  }
}

TEST(Rtn, ThreadsDoNotChangeTheResult) {
  const std::vector<float> weights = random_weights(70 * 5000, 5);
  WeightFormat format;
  format.residual_budget = 0.3;
  format.clip = true;
  const QuantizedMatrix one = quantize(weights, 70, 5000, format, 1),
                        three = quantize(weights, 70, 5000, format, 3);
  EXPECT_EQ(one.planes.hi, three.planes.hi);
  EXPECT_EQ(one.planes.lo, three.planes.lo);
  EXPECT_EQ(one.planes.scale, three.planes.scale);
  EXPECT_EQ(one.squared_error, three.squared_error);
}

TEST(Rtn, ErrorsNameTheLinear) {
  std::vector<float> weights(16 * 32, 1e6f);
  WeightFormat format;
  format.group = 16;
  try {
    quantize(weights, 16, 32, format);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layer.q"), std::string::npos) << error.what();
  }
}

TEST(Select, BudgetTiesAndZeros) {
  const std::vector<double> scores = {1, 5, 5, 0, 2, 0};
  EXPECT_EQ(select_blocks(scores, 0), std::vector<int32_t>{});
  EXPECT_EQ(select_blocks(scores, 0.1), std::vector<int32_t>{1});
  EXPECT_EQ(select_blocks(scores, 0.34), (std::vector<int32_t>{1, 2, 4}));
  EXPECT_EQ(select_blocks(scores, 1), (std::vector<int32_t>{0, 1, 2, 4}));
  EXPECT_EQ(select_blocks(std::vector<double>(10, 1.0), 0.1), std::vector<int32_t>{0});
  EXPECT_NE(random_scores(8, 1, "a"), random_scores(8, 1, "b"));
  EXPECT_EQ(random_scores(8, 1, "a"), random_scores(8, 1, "a"));
}

TEST(Planes, StoredCodesComeBack) {
  NibblePlanes planes = make_planes(18, 37, 0, 16, {0, 2, 4});
  SplitMix64 rng(1);
  std::vector<std::vector<int>> codes(18, std::vector<int>(37));
  for (int64_t row = 0; row < 18; ++row) {
    for (int64_t column = 0; column < 37; ++column) {
      const auto block = static_cast<int32_t>(row / 16 * 3 + column / 16);
      int code = static_cast<int>(rng.below(256)) - 128;
      if (block % 2 != 0 || block > 4) code = code / 16 * 16;
      codes[static_cast<size_t>(row)][static_cast<size_t>(column)] = code;
    }
    store_codes(planes, row, codes[static_cast<size_t>(row)]);
  }
  for (int64_t row = 0; row < 18; ++row)
    for (int64_t column = 0; column < 37; ++column)
      ASSERT_EQ(planes.code(row, column), codes[static_cast<size_t>(row)][static_cast<size_t>(column)]);
}

}  // namespace
}  // namespace quatrain
