// GPTQ against the textbook procedure it abbreviates (Optimal Brain Surgeon with a fixed order), in FP64.
#include "quant/weights/gptq.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "quant/weights/planes.h"

namespace quatrain {
namespace {

torch::Tensor random_matrix(int64_t rows, int64_t columns, uint64_t seed) {
  torch::Tensor tensor = torch::empty({rows, columns}, torch::kDouble);
  SplitMix64 rng(seed);
  for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data_ptr<double>()[i] = rng.normal();
  return tensor;
}

// Correlated inputs, as a layer has them: (2 / N) X^T X.
torch::Tensor random_hessian(int64_t columns, int64_t tokens, uint64_t seed) {
  const torch::Tensor mix = random_matrix(columns, columns, seed + 1);
  const torch::Tensor x =
      random_matrix(tokens, columns, seed).matmul(mix + 3 * torch::eye(columns, torch::kDouble));
  return x.t().matmul(x) * (2.0 / static_cast<double>(tokens));
}

torch::Tensor dequantized(const NibblePlanes& planes) {
  torch::Tensor weights = torch::empty({planes.rows, planes.columns}, torch::kFloat);
  for (int64_t row = 0; row < planes.rows; ++row)
    planes.dequantize_row(row, weights.data_ptr<float>() + row * planes.columns);
  return weights.to(torch::kDouble);
}

double quadratic(const torch::Tensor& error, const torch::Tensor& hessian) {
  return error.matmul(hessian).mul(error).sum().item<double>();
}

torch::Tensor damped(const torch::Tensor& hessian, double damping = 0.01) {
  return hessian + damping * hessian.diagonal().mean() * torch::eye(hessian.size(0), torch::kDouble);
}

// Round column after column; after each, the open columns F move by -(w_j - q_j) / [H_F^-1]_jj [H_F^-1]_j,F,
// with H_F inverted anew each time. Codes [rows, columns].
std::vector<int> surgeon(const torch::Tensor& weight, const torch::Tensor& hessian,
                         const NibblePlanes& planes) {
  const int64_t rows = weight.size(0), columns = weight.size(1);
  const int64_t group = planes.weight_group == 0 ? columns : planes.weight_group;
  torch::Tensor open = weight.to(torch::kDouble).clone();
  std::vector<int> codes(static_cast<size_t>(rows * columns));
  for (int64_t j = 0; j < columns; ++j) {
    const torch::Tensor inverse = torch::linalg_inv(hessian.slice(0, j).slice(1, j));
    for (int64_t row = 0; row < rows; ++row) {
      const double scale = planes.scale[static_cast<size_t>(row * planes.groups() + j / group)];
      const auto block = static_cast<int32_t>(row / 16 * planes.block_columns() + j / planes.residual_block);
      const bool eight =
          std::binary_search(planes.residual_index.begin(), planes.residual_index.end(), block);
      const double w = open[row][j].item<double>();
      const int code = static_cast<int>(eight ? std::clamp(std::nearbyint(16 * w / scale), -128.0, 127.0)
                                              : 16 * std::clamp(std::nearbyint(w / scale), -8.0, 7.0));
      codes[static_cast<size_t>(row * columns + j)] = code;
      const double step = (w - scale * code / 16) / inverse[0][0].item<double>();
      open[row].slice(0, j) -= step * inverse[0];
    }
  }
  return codes;
}

void expect_surgeon(const torch::Tensor& weight, const torch::Tensor& hessian, const WeightFormat& format,
                    const std::vector<int32_t>& selected, const GptqOptions& options) {
  const GptqResult result = quantize_gptq("q", weight, hessian, format, selected, options);
  ASSERT_FALSE(result.fallback);
  const std::vector<int> expected = surgeon(weight, damped(hessian, options.damping), result.planes);
  int64_t different = 0;
  for (int64_t row = 0; row < weight.size(0); ++row)
    for (int64_t column = 0; column < weight.size(1); ++column)
      different +=
          result.planes.code(row, column) != expected[static_cast<size_t>(row * weight.size(1) + column)];
  // FP32 in the loop: a value within 1e-5 steps of a tie may fall the other way (and move later ones by a
  // step).
  EXPECT_LE(different, weight.numel() / 200) << different << " of " << weight.numel();
  EXPECT_NEAR(
      result.loss,
      quadratic(dequantized(result.planes) - weight.to(torch::kDouble), damped(hessian, options.damping)),
      1e-3 * result.loss);
}

TEST(Gptq, EqualsOptimalBrainSurgeon) {
  const torch::Tensor weight = random_matrix(20, 48, 1).to(torch::kFloat);
  const torch::Tensor hessian = random_hessian(48, 200, 2);
  WeightFormat format;
  format.residual_block = 16;
  expect_surgeon(weight, hessian, format, {}, {});
  expect_surgeon(weight, hessian, format, {1, 3}, {});
  format.group = 16;
  GptqOptions options;
  options.block = 20;  // becomes two groups
  expect_surgeon(weight, hessian, format, {}, options);
  options.static_groups = true;
  expect_surgeon(weight, hessian, format, {0, 5}, options);
  format.bits = 8;
  expect_surgeon(weight, hessian, format, {}, options);
}

TEST(Gptq, BlockSizeChangesNothing) {
  const torch::Tensor weight = random_matrix(16, 64, 3).to(torch::kFloat),
                      hessian = random_hessian(64, 300, 4);
  std::vector<uint8_t> first;
  for (const int64_t block : {1, 7, 64, 128}) {
    GptqOptions options;
    options.block = block;
    const GptqResult result = quantize_gptq("q", weight, hessian, {}, {}, options);
    if (first.empty()) first = result.planes.hi;
    int64_t different = 0;
    for (size_t i = 0; i < first.size(); ++i) different += first[i] != result.planes.hi[i];
    EXPECT_LE(different, 4) << block;  // ties, as above
  }
}

TEST(Gptq, UncorrelatedInputsGiveRoundToNearest) {
  const torch::Tensor weight = random_matrix(18, 40, 5).to(torch::kFloat);
  WeightFormat format;
  format.clip = true;
  const GptqResult result = quantize_gptq("q", weight, torch::eye(40, torch::kDouble) * 3, format, {}, {});
  ThreadPool pool(1);
  const RowReader read = [&](int64_t begin, int64_t end) {
    const float* data = weight.data_ptr<float>();
    return std::vector<float>(data + begin * 40, data + end * 40);
  };
  const QuantizedMatrix nearest = quantize_rtn("q", 18, 40, read, format, pool);
  EXPECT_EQ(result.planes.hi, nearest.planes.hi);
  EXPECT_EQ(result.planes.scale, nearest.planes.scale);
}

TEST(Gptq, BeatsRoundToNearestAndResidualsHelp) {
  const torch::Tensor weight = random_matrix(32, 64, 6).to(torch::kFloat),
                      hessian = random_hessian(64, 400, 7);
  WeightFormat format;
  format.residual_block = 32;
  ThreadPool pool(1);
  const RowReader read = [&](int64_t begin, int64_t end) {
    const float* data = weight.data_ptr<float>();
    return std::vector<float>(data + begin * 64, data + end * 64);
  };
  const auto error_of = [&](const NibblePlanes& planes) {
    return quadratic(dequantized(planes) - weight.to(torch::kDouble), hessian);
  };
  const double nearest = error_of(quantize_rtn("q", 32, 64, read, format, pool).planes);
  const double gptq = error_of(quantize_gptq("q", weight, hessian, format, {}, {}).planes);
  const double residual = error_of(quantize_gptq("q", weight, hessian, format, {0}, {}).planes);
  GptqOptions ordered;
  ordered.act_order = true;
  const double act_order = error_of(quantize_gptq("q", weight, hessian, format, {}, ordered).planes);
  EXPECT_LT(gptq, nearest);
  EXPECT_LT(act_order, nearest);
  EXPECT_LT(residual, gptq);
}

// Act-order is the natural order of the permuted problem.
TEST(Gptq, ActOrderIsAPermutation) {
  const torch::Tensor weight = random_matrix(16, 40, 8).to(torch::kFloat),
                      hessian = random_hessian(40, 300, 9);
  const torch::Tensor order = torch::argsort(hessian.diagonal(), 0, true);
  GptqOptions ordered;
  ordered.act_order = true;
  const GptqResult one = quantize_gptq("q", weight, hessian, {}, {}, ordered);
  const GptqResult two = quantize_gptq("q", weight.index_select(1, order).contiguous(),
                                       hessian.index_select(0, order).index_select(1, order), {}, {}, {});
  for (int64_t row = 0; row < 16; ++row)
    for (int64_t i = 0; i < 40; ++i)
      ASSERT_EQ(one.planes.code(row, order[i].item<int64_t>()), two.planes.code(row, i));
}

TEST(Gptq, DeadColumnsFewSamplesAndBrokenHessians) {
  const torch::Tensor weight = random_matrix(16, 32, 10).to(torch::kFloat);
  torch::Tensor hessian = random_hessian(32, 200, 11);
  hessian.select(0, 5).zero_();
  hessian.select(1, 5).zero_();
  GptqResult result = quantize_gptq("q", weight, hessian, {}, {}, {});
  EXPECT_FALSE(result.fallback);
  for (int64_t row = 0; row < 16; ++row) EXPECT_EQ(result.planes.code(row, 5), 0);

  result = quantize_gptq("q", weight, random_hessian(32, 3, 12), {}, {}, {});  // rank 3
  EXPECT_FALSE(result.fallback);
  EXPECT_TRUE(std::isfinite(result.loss));

  GptqOptions undamped;  // rises from 0 too
  undamped.damping = 0;
  result = quantize_gptq("q", weight, random_hessian(32, 3, 12), {}, {}, undamped);
  EXPECT_LE(result.damping, 1);
  EXPECT_TRUE(std::isfinite(result.loss));

  torch::Tensor indefinite = random_hessian(32, 200, 13);
  indefinite = indefinite - 0.5 * indefinite.diagonal().mean() * torch::eye(32, torch::kDouble);
  indefinite.diagonal().clamp_min_(1e-3);
  result = quantize_gptq("q", weight, indefinite, {}, {}, {});
  if (!result.fallback) {
    EXPECT_GT(result.damping, 0.01);
  }
  EXPECT_TRUE(torch::isfinite(dequantized(result.planes)).all().item<bool>());

  result = quantize_gptq("q", weight, torch::full({32, 32}, std::nan(""), torch::kDouble), {}, {}, {});
  EXPECT_TRUE(result.fallback);
  EXPECT_TRUE(torch::isfinite(dequantized(result.planes)).all().item<bool>());

  EXPECT_THROW(quantize_gptq("q", weight, random_hessian(16, 50, 1), {}, {}, {}), Error);
  GptqOptions options;
  options.act_order = true;
  WeightFormat format;
  format.group = 16;
  EXPECT_THROW(quantize_gptq("q", weight, random_hessian(32, 200, 1), format, {}, options), Error);
}

}  // namespace
}  // namespace quatrain
