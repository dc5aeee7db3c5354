// The mma.sync kernels of Ampere and Ada, built for the GPU that runs the tests: from compute capability 9.0
// on the 4-bit instruction is emulated, slow but exact.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>

#include "../random_matrix.h"
#include "ops/cuda/nibble_activations.h"
#include "ops/cuda/zipper_mma.h"

namespace quatrain {
namespace {

using ops::DeviceActivations;
using ops::DeviceBuffer;
using ops::MmaPlan;
using ops::ZipperMatrix;
using ops::ZipperWorkspace;
using test::HostActivations;
using test::Presence;

struct Case {
  int64_t tokens, rows, columns, weight_group, residual_block, group;
  int bits;
  Presence presence;
  int zero_span;
};

std::vector<MmaPlan> plans(const ZipperMatrix& weights, int64_t tokens, int bits) {
  std::vector<MmaPlan> all;
  for (const bool nibbles : {false, true}) {
    if (nibbles && bits != 4) continue;
    for (const int tile : {nibbles ? 128 : 16, 64}) {
      const auto outputs = static_cast<int>(weights.tiles * ((tokens + tile - 1) / tile));
      all.push_back({nibbles, tile, std::min(outputs, 3), false});
      all.push_back({nibbles, tile, static_cast<int>(std::min<int64_t>(outputs * weights.steps, 7)), true});
    }
  }
  return all;
}

std::string name_of(const MmaPlan& plan) {
  return fmt::format("{} tile {} workers {}{}", plan.nibbles ? "nibbles" : "bytes", plan.tile_tokens,
                     plan.workers, plan.stream_k ? " stream-K" : "");
}

// On a stream of its own, so that nothing waits by chance.
template <typename Out>
std::vector<Out> run(const ZipperMatrix& weights, const DeviceActivations& x, ZipperWorkspace& workspace,
                     const MmaPlan& plan) {
  const int64_t stride = weights.rows + 3;
  const auto size = static_cast<size_t>(x.tokens * stride);
  DeviceBuffer<Out> y(size);
  cudaMemset(y.data(), 0xFF, y.bytes());  // NaN: every result must be written
  ops::zipper_mma(weights, x, workspace, plan, y.data(), stride, nullptr);
  ops::cuda_check(cudaDeviceSynchronize(), "zipper product by mma");
  std::vector<Out> out(size), result;
  y.download(out.data(), size);
  for (int64_t t = 0; t < x.tokens; ++t)
    for (int64_t o = 0; o < stride; ++o) {
      const Out value = out[static_cast<size_t>(t * stride + o)];
      if (o < weights.rows)
        result.push_back(value);
      else
        EXPECT_TRUE(std::isnan(static_cast<float>(value))) << "wrote past row " << t;
    }
  return result;
}

void upload(const HostActivations& x, DeviceActivations& device) {
  x.upload(device);
  device.packed = false;
  if (x.bits == 4) ops::pack_nibbles(device, nullptr);
}

// The integer of each group alone: its scales are 1, all others 0, so FP32 must show it. `reference` is the
// sum of (q - z) c over the group.
void expect_exact_sums(const Case& c) {
  SCOPED_TRACE(fmt::format("{} tokens, {} x {}, groups of {} and {}, {} bits", c.tokens, c.rows, c.columns,
                           c.weight_group, c.group, c.bits));
  NibblePlanes planes =
      test::random_planes(c.rows, c.columns, c.weight_group, c.residual_block, c.presence, 7);
  std::fill(planes.scale.begin(), planes.scale.end(), 16.0f);
  HostActivations x = test::random_activations(c.tokens, c.columns, c.group, c.bits, c.zero_span, 8);
  std::vector<int> codes;
  for (int64_t o = 0; o < planes.rows; ++o)
    for (int64_t k = 0; k < planes.columns; ++k) codes.push_back(planes.code(o, k));
  const ZipperMatrix weights(planes, c.group);
  ZipperWorkspace workspace(c.rows, c.tokens);
  DeviceActivations device(c.tokens, c.columns, c.group);
  device.make_room_for_nibbles();
  for (int64_t g = 0; g < x.groups; ++g) {
    std::fill(x.scale.begin(), x.scale.end(), 0.0f);
    for (int64_t t = 0; t < c.tokens; ++t) x.scale[static_cast<size_t>(t * x.groups + g)] = 1.0f;
    upload(x, device);
    std::vector<int64_t> sums;
    for (int64_t t = 0; t < c.tokens; ++t)
      for (int64_t o = 0; o < c.rows; ++o) {
        int64_t sum = 0;
        const int zero = x.zero[static_cast<size_t>(t * x.groups + g)];
        for (int64_t k = g * x.group; k < std::min((g + 1) * x.group, c.columns); ++k)
          sum += (x.codes[static_cast<size_t>(t * c.columns + k)] - zero) *
                 codes[static_cast<size_t>(o * c.columns + k)];
        sums.push_back(sum);
      }
    for (const MmaPlan& plan : plans(weights, c.tokens, c.bits)) {
      const std::vector<float> y = run<float>(weights, device, workspace, plan);
      int wrong = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        // One drain: the exact integer, rounded to FP32 once. Wider groups are sums of such parts.
        const double sum = static_cast<double>(sums[i]);
        const bool one_part = c.group == weights.drain || weights.steps == 1;
        const double slack =
            one_part ? 0
            : c.zero_span == 0 && std::abs(sum) < 16777216
                ? 0
                : FLT_EPSILON * (std::abs(sum) + 32767.0 * 127 * static_cast<double>(x.group)) * 4;
        const double expected = one_part ? static_cast<double>(static_cast<float>(sums[i])) : sum;
        if (!(std::abs(y[i] - expected) <= slack) && wrong++ < 3)
          ADD_FAILURE() << "result " << i << " group " << g << " " << name_of(plan) << ": " << y[i]
                        << " instead of " << sum;
      }
      EXPECT_EQ(wrong, 0);
    }
  }
}

TEST(ZipperMma, SumsAreExact) {
  // Odd tokens, rows and columns; every group size; all presence patterns; 4 and 8 bits; zeros within the
  // codes' range and up to +-32,767.
  for (const Case& c : {Case{3, 200, 384, 0, 128, 128, 4, Presence::None, 0},
                        Case{130, 144, 256, 0, 128, 128, 4, Presence::All, 0},
                        Case{17, 129, 333, 0, 128, 128, 4, Presence::Random, 0},
                        Case{33, 97, 576, 64, 64, 64, 4, Presence::Random, 0},
                        Case{5, 300, 320, 32, 32, 32, 4, Presence::Corner, 0},
                        Case{70, 65, 512, 128, 128, 256, 4, Presence::Random, 0},
                        Case{9, 130, 640, 0, 64, 0, 4, Presence::Random, 0},
                        Case{90, 140, 384, 0, 128, 128, 4, Presence::Random, 32767},
                        Case{130, 144, 256, 0, 128, 128, 8, Presence::All, 32767},
                        Case{17, 129, 333, 0, 128, 128, 8, Presence::Random, 0},
                        Case{33, 97, 576, 64, 64, 64, 8, Presence::Random, 32767},
                        Case{5, 300, 320, 32, 32, 32, 8, Presence::Corner, 32767},
                        Case{70, 65, 512, 128, 128, 256, 8, Presence::Random, 0},
                        Case{1, 16, 128, 0, 128, 128, 8, Presence::All, 32767}})
    expect_exact_sums(c);
}

TEST(ZipperMma, NibblesStandForTheSameValues) {
  // x = s (code - zero) before and after packing, in units of a zero's columns, odd widths included.
  for (const auto& [width, group] : {std::pair<int64_t, int64_t>{333, 128}, {320, 32}, {192, 64}, {300, 0}}) {
    const HostActivations x = test::random_activations(5, width, group, 4, 40, 9);
    DeviceActivations device(5, width, group);
    device.make_room_for_nibbles();
    upload(x, device);
    std::vector<uint32_t> nibbles(device.nibbles.size());
    std::vector<int32_t> zeros(device.nibble_zero.size());
    device.nibbles.download(nibbles.data(), nibbles.size());
    device.nibble_zero.download(zeros.data(), zeros.size());
    for (int64_t t = 0; t < 5; ++t)
      for (int64_t k = 0; k < width; ++k) {
        const int64_t within = k % 32, word = within % 16 / 4, byte = within % 4;
        const uint32_t packed =
            nibbles[static_cast<size_t>((k / 128 * device.token_stride + t) * 16 + word * 4 + k % 128 / 32)];
        const int nibble = static_cast<int>(packed >> (8 * byte + (within < 16 ? 4 : 0)) & 15);
        const int zero = zeros[static_cast<size_t>(k / device.nibble_unit * device.token_stride + t)];
        EXPECT_EQ(nibble - zero, x.codes[static_cast<size_t>(t * width + k)] -
                                     x.zero[static_cast<size_t>(t * x.groups + k / x.group)])
            << t << " " << k;
      }
  }
}

TEST(ZipperMma, AllPathsGiveTheSameBits) {
  // Bytes and nibbles, every tile: the same integers, scaled and added in the same order. Scales a group,
  // bias, BF16 results.
  for (const int64_t weight_group : {0, 128, 64}) {
    const int64_t group = weight_group == 64 ? 64 : 128;
    const NibblePlanes planes = test::random_planes(270, 640, weight_group, 128, Presence::Random, 11, true);
    const HostActivations x = test::random_activations(150, 640, group, 4, 20, 12);
    const ZipperMatrix weights(planes, group);
    ZipperWorkspace workspace(270, 150);
    DeviceActivations device(150, 640, group);
    device.make_room_for_nibbles();
    upload(x, device);
    const std::vector<float> expected = run<float>(weights, device, workspace, {false, 16, 2, false});
    for (const MmaPlan& plan :
         {MmaPlan{false, 64, 3, false}, MmaPlan{true, 64, 4, false}, MmaPlan{true, 128, 5, false}}) {
      EXPECT_EQ(run<float>(weights, device, workspace, plan), expected) << name_of(plan);
      const std::vector<__nv_bfloat16> half = run<__nv_bfloat16>(weights, device, workspace, plan);
      for (size_t i = 0; i < half.size(); ++i)
        ASSERT_EQ(static_cast<float>(half[i]), static_cast<float>(__float2bfloat16(expected[i]))) << i;
    }
    // The wgmma kernels of the GPU that runs this test agree too, where it has them.
    double largest = 0;
    for (const float value : expected) largest = std::max(largest, std::abs(static_cast<double>(value)));
    DeviceBuffer<float> y(150 * 270);
    ops::zipper_gemm(weights, device, workspace, y.data(), 270, nullptr);
    std::vector<float> other(y.size());
    y.download(other.data(), other.size());
    for (size_t i = 0; i < other.size(); ++i)
      ASSERT_NEAR(other[i], expected[i], largest * FLT_EPSILON * 16) << i;
  }
}

TEST(ZipperMma, RefusesWhatItCannotDo) {
  const NibblePlanes good = test::random_planes(16, 192, 64, 64, Presence::None, 5);
  const ZipperMatrix weights(good, 64);
  ZipperWorkspace workspace(16, 4);
  DeviceActivations x(4, 192, 64), other(4, 192, 128);
  DeviceBuffer<float> y(64);
  EXPECT_THROW(ops::pack_nibbles(x, nullptr), Error);  // no room was made
  EXPECT_THROW(ops::zipper_mma(weights, other, workspace, {false, 16, 1, false}, y.data(), 16, nullptr),
               Error);
  EXPECT_THROW(ops::zipper_mma(weights, x, workspace, {true, 64, 1, false}, y.data(), 16, nullptr), Error);
  EXPECT_THROW(ops::zipper_mma(weights, x, workspace, {false, 128, 1, false}, y.data(), 16, nullptr), Error);
  EXPECT_THROW(ops::zipper_mma(weights, x, workspace, {false, 16, 1, false}, y.data(), 15, nullptr), Error);
}

}  // namespace
}  // namespace quatrain
