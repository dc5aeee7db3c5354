#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/half.h"
#include "ops/cuda/quantize_rows.h"
#include "random_matrix.h"

namespace quatrain {
namespace {

using ops::DeviceActivations;
using ops::DeviceBuffer;
using ops::RowOptions;

std::vector<float> random_rows(int64_t size, float offset, uint64_t seed) {
  std::vector<float> x = test::random_normals(size, offset, 2.0f, seed);
  for (float& value : x) value = bf16_to_float(float_to_bf16(value));
  return x;
}

struct Result {
  std::vector<int8_t> codes;
  std::vector<float> scale;
  std::vector<int32_t> zero;
  explicit Result(const DeviceActivations& x)
      : codes(x.codes.size()), scale(x.scale.size()), zero(x.zero.size()) {
    ops::cuda_check(cudaDeviceSynchronize(), "quantiser");
    x.codes.download(codes.data(), codes.size());
    x.scale.download(scale.data(), scale.size());
    x.zero.download(zero.data(), zero.size());
  }
};

template <typename T>
DeviceBuffer<T> upload(const std::vector<float>& x) {
  std::vector<T> converted;
  for (const float value : x) converted.push_back(static_cast<T>(value));
  return DeviceBuffer<T>(converted.data(), converted.size());
}

template <typename T>
void expect_identical(int64_t tokens, int64_t width, int64_t group, int bits, bool symmetric, float offset) {
  SCOPED_TRACE(testing::Message() << tokens << " x " << width << " group " << group << " bits " << bits
                                  << " offset " << offset);
  std::vector<float> x = random_rows(tokens * width, offset, 3);
  for (int64_t k = 0; k < std::min<int64_t>(width, 64); ++k)
    x[static_cast<size_t>(k)] = 0;  // an all-zero group
  DeviceActivations out(tokens, width, group);
  RowOptions options;
  options.policy = {bits, group, symmetric};
  const DeviceBuffer<T> device = upload<T>(x);
  ops::quantize_rows(device.data(), width, options, out, nullptr);
  const Result result(out);
  int wrong = 0;
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t g = 0; g < out.groups; ++g) {
      const int64_t first = g * out.group, count = std::min(out.group, width - first);
      const float* from = x.data() + t * width + first;
      const QuantizedGroup expected = quantize_group(from, count, bits, symmetric, out.group);
      const int shift = ops::shift_of(expected.zero, bits);
      const auto at = static_cast<size_t>(g * out.token_stride + t);
      if ((result.scale[at] != expected.scale || result.zero[at] != expected.zero - shift) && wrong++ < 3)
        ADD_FAILURE() << "token " << t << " group " << g << ": scale " << result.scale[at] << " zero "
                      << result.zero[at] + shift << ", not " << expected.scale << " and " << expected.zero;
      for (int64_t k = 0; k < count; ++k) {
        const int code = result.codes[static_cast<size_t>(t * out.stride + first + k)] + shift;
        if (code != quantize_value(from[k], expected, bits) && wrong++ < 3)
          ADD_FAILURE() << "token " << t << " column " << first + k << ": code " << code;
      }
    }
  EXPECT_EQ(wrong, 0);
}

TEST(QuantizeRows, IsTheSameAsOnTheCpu) {
  for (const int64_t group : {32, 64, 128, 256, 0})
    for (const int bits : {4, 8}) {
      expect_identical<float>(3, 576, group, bits, false, 0);
      expect_identical<__nv_bfloat16>(5, 1000, group, bits, false, 100);
      expect_identical<float>(2, 4096, group, bits, true, 0);
    }
  expect_identical<__nv_bfloat16>(2, 14336, 128, 4, false, 1);
  expect_identical<float>(2, 29568, 128, 8, false, -3000);
  expect_identical<float>(1, 77, 0, 8, false, 0);
}

// The transform in double precision: norm, gain, blocks of Hadamard.
std::vector<double> transformed(const std::vector<float>& x, int64_t tokens, int64_t width, double epsilon,
                                const std::vector<float>& gain, int order) {
  std::vector<double> y(x.begin(), x.end());
  for (int64_t t = 0; t < tokens; ++t) {
    double* row = y.data() + t * width;
    if (epsilon > 0) {
      double squares = 0;
      for (int64_t k = 0; k < width; ++k) squares += row[k] * row[k];
      for (int64_t k = 0; k < width; ++k) row[k] /= std::sqrt(squares / static_cast<double>(width) + epsilon);
    }
    for (int64_t k = 0; k < width; ++k) row[k] *= gain.empty() ? 1.0 : gain[static_cast<size_t>(k)];
    for (int64_t distance = 1; distance < order; distance *= 2)
      for (int64_t k = 0; k < width; ++k)
        if ((k & distance) == 0) {
          const double a = row[k], b = row[k + distance];
          row[k] = (a + b) / std::sqrt(2.0);
          row[k + distance] = (a - b) / std::sqrt(2.0);
        }
  }
  return y;
}

void expect_close(const DeviceActivations& out, const std::vector<double>& expected) {
  const Result result(out);
  int wrong = 0;
  for (int64_t t = 0; t < out.tokens; ++t) {
    double largest = 0;
    for (int64_t k = 0; k < out.width; ++k)
      largest = std::max(largest, std::abs(expected[static_cast<size_t>(t * out.width + k)]));
    for (int64_t k = 0; k < out.width; ++k) {
      const auto at = static_cast<size_t>(k / out.group * out.token_stride + t);
      const double got = static_cast<double>(result.scale[at]) *
                         (result.codes[static_cast<size_t>(t * out.stride + k)] - result.zero[at]);
      // Half a step of the quantiser; a few roundings of FP32 and of its fast exponential and square root
      // before.
      const double slack = result.scale[at] * 0.5001 + largest * 4e-6;
      if (!(std::abs(got - expected[static_cast<size_t>(t * out.width + k)]) <= slack) && wrong++ < 3)
        ADD_FAILURE() << "token " << t << " column " << k << ": " << got << " instead of "
                      << expected[static_cast<size_t>(t * out.width + k)] << " +- " << slack;
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST(QuantizeRows, NormsAndRotates) {
  for (const int order : {0, 8, 64, 256, 1024}) {
    SCOPED_TRACE(order);
    const int64_t tokens = 3, width = order == 0 ? 2567 : 3072;
    const std::vector<float> x = random_rows(tokens * width, 0.5f, 9), gain = random_rows(width, 1, 10);
    DeviceActivations out(tokens, width, 128);
    const DeviceBuffer<float> device_gain(gain.data(), gain.size());
    RowOptions options;
    options.policy = {8, 128, false};
    options.gain = device_gain.data();
    options.hadamard = order;
    const DeviceBuffer<__nv_bfloat16> device = upload<__nv_bfloat16>(x);
    ops::rms_norm_quantize(device.data(), width, 1e-5f, options, out, nullptr);
    expect_close(out, transformed(x, tokens, width, 1e-5, gain, order));
  }
}

TEST(QuantizeRows, GatesAndRotates) {
  const int64_t tokens = 4, width = 14336;
  const std::vector<float> x = random_rows(tokens * 2 * width, 0, 19);
  std::vector<float> product;
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t k = 0; k < width; ++k) {
      const double gate = x[static_cast<size_t>(t * 2 * width + k)],
                   up = x[static_cast<size_t>(t * 2 * width + width + k)];
      product.push_back(static_cast<float>(gate / (1 + std::exp(-gate)) * up));
    }
  DeviceActivations out(tokens, width, 128);
  RowOptions options;
  options.policy = {8, 128, false};
  options.hadamard = 128;
  const DeviceBuffer<float> device = upload<float>(x);
  ops::silu_mul_quantize(device.data(), 2 * width, options, out, nullptr);
  expect_close(out, transformed(product, tokens, width, 0, {}, 128));
}

TEST(QuantizeRows, NamesTheFirstValueThatIsNotFinite) {
  std::vector<float> x = random_rows(4 * 256, 0, 29);
  x[2 * 256 + 17] = NAN;
  x[3 * 256 + 1] = INFINITY;
  DeviceActivations out(4, 256, 128);
  DeviceBuffer<unsigned long long> bad(1);
  cudaMemset(bad.data(), 0xFF, 8);
  RowOptions options;
  options.policy = {4, 128, false};
  options.bad = bad.data();
  const DeviceBuffer<float> device = upload<float>(x);
  ops::quantize_rows(device.data(), 256, options, out, nullptr);
  unsigned long long found = 0;
  bad.download(&found, 1);
  EXPECT_EQ(found, 2u * 256 + 17);
}

TEST(QuantizeRows, RefusesWhatItCannotDo) {
  DeviceActivations out(1, 192, 48), good(1, 192, 64);
  DeviceBuffer<float> x(192);
  RowOptions options;
  options.policy = {4, 48, false};
  EXPECT_THROW(ops::quantize_rows(x.data(), 192, options, out, nullptr), Error);
  options.policy = {16, 64, false};
  EXPECT_THROW(ops::quantize_rows(x.data(), 192, options, good, nullptr), Error);
  options.policy = {4, 64, false};
  options.hadamard = 128;
  EXPECT_THROW(ops::quantize_rows(x.data(), 192, options, good, nullptr), Error);
}

}  // namespace
}  // namespace quatrain
