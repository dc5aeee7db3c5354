#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>

#include "ops/cuda/zipper_gemm.h"
#include "random_matrix.h"

namespace quatrain {
namespace {

using ops::DeviceActivations;
using ops::DeviceBuffer;
using ops::kTileRows;
using ops::ZipperMatrix;
using ops::ZipperPlan;
using ops::ZipperWorkspace;
using test::HostActivations;
using test::Presence;

std::vector<int> codes_of(const NibblePlanes& planes) {
  std::vector<int> codes;
  for (int64_t o = 0; o < planes.rows; ++o)
    for (int64_t k = 0; k < planes.columns; ++k) codes.push_back(planes.code(o, k));
  return codes;
}

constexpr ZipperPlan gemm_plan(int tile_tokens, int workers, bool stream_k) {
  return {ZipperPlan::Kernel::Gemm, tile_tokens, workers, 0, stream_k};
}
// `tiles` tiles for each cluster of CTAs.
constexpr ZipperPlan cluster_plan(int tile_tokens, int outputs, int cluster, int tiles) {
  return {ZipperPlan::Kernel::Gemm, tile_tokens, outputs / tiles * cluster, 0, true, cluster};
}
constexpr ZipperPlan wide_plan(int tile_tokens, int workers, bool stream_k) {
  return {ZipperPlan::Kernel::Wide, tile_tokens, workers, 0, stream_k};
}
constexpr ZipperPlan decode_plan(int tile_tokens, int workers, int slices) {
  return {ZipperPlan::Kernel::Decode, tile_tokens, workers, slices, false};
}
std::string name_of(const ZipperPlan& plan) {
  return fmt::format("{} {} workers {} slices {}{} cluster {}",
                     plan.kernel == ZipperPlan::Kernel::Decode ? "decode"
                     : plan.kernel == ZipperPlan::Kernel::Wide ? "wide"
                                                               : "GEMM",
                     plan.tile_tokens, plan.workers, plan.slices, plan.stream_k ? " stream-K" : "",
                     plan.cluster);
}

std::vector<ZipperPlan> cluster_plans(const ZipperMatrix& weights, int64_t tokens) {
  std::vector<ZipperPlan> all;
  for (const int tile : {16, 32, 64}) {
    const auto outputs = static_cast<int>(weights.tiles * ((tokens + tile - 1) / tile));
    for (const int cluster : {2, 4, 8})
      for (const int tiles : {1, 2, 3, 5})
        if (outputs % tiles == 0 && ops::cluster_fits(tile, cluster, tiles, weights.steps))
          all.push_back(cluster_plan(tile, outputs, cluster, tiles));
  }
  return all;
}

std::vector<ZipperPlan> plans(const ZipperMatrix& weights, int64_t tokens) {
  std::vector<ZipperPlan> all = cluster_plans(weights, tokens);
  for (const int tile : {16, 32, 64, 128}) {
    const int cluster = tile == 128 ? 2 : 1;
    const auto outputs =
        static_cast<int>((weights.tiles + cluster - 1) / cluster * ((tokens + tile - 1) / tile));
    all.push_back(gemm_plan(tile, std::min(outputs, 3), false));
    all.push_back(gemm_plan(tile, static_cast<int>(std::min<int64_t>(outputs * weights.steps, 7)), true));
  }
  for (const int tile : {128, 256}) {
    if (weights.drain != 128 || weights.group_scales) break;
    const auto outputs = static_cast<int>((weights.tiles + 1) / 2 * ((tokens + tile - 1) / tile));
    all.push_back(wide_plan(tile, std::min(outputs, 3), false));
    if (tile == 128)
      all.push_back(wide_plan(tile, static_cast<int>(std::min<int64_t>(outputs * weights.steps, 7)), true));
  }
  for (const int tile : {8, 16})
    for (const int slices : {1, 3, 16})
      if (tokens <= tile) all.push_back(decode_plan(tile, 2, slices));
  return all;
}

template <typename Out>
std::vector<Out> run(const ZipperMatrix& weights, const DeviceActivations& x, ZipperWorkspace& workspace,
                     const ZipperPlan& plan) {
  // An even distance lets whole tiles be stored as vectors, an odd one does not.
  const int64_t stride = weights.rows + (weights.rows % 128 == 0 ? 8 : 3);
  const auto size = static_cast<size_t>(x.tokens * stride);
  DeviceBuffer<Out> y(size);
  cudaMemset(y.data(), 0xFF, y.bytes());  // NaN: every result must be written
  ops::zipper_gemm_planned(weights, x, workspace, plan, y.data(), stride, nullptr, false);
  ops::cuda_check(cudaDeviceSynchronize(), "zipper GEMM");
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

struct Case {
  int64_t tokens, rows, columns, weight_group, residual_block, group;
  int bits;
  Presence presence;
  int zero_span;
};

// The integer sum of each group alone: its scale is 1, all others 0, so FP32 must show it exactly.
void expect_exact_sums(const Case& c) {
  NibblePlanes planes =
      test::random_planes(c.rows, c.columns, c.weight_group, c.residual_block, c.presence, 7);
  std::fill(planes.scale.begin(), planes.scale.end(), 16.0f);
  HostActivations x = test::random_activations(c.tokens, c.columns, c.group, c.bits, 0, 8);
  std::fill(x.zero.begin(), x.zero.end(), 0);
  const std::vector<int> codes = codes_of(planes);
  const ZipperMatrix weights(planes, c.group);
  ZipperWorkspace workspace(c.rows, c.tokens, c.columns);
  DeviceActivations device(c.tokens, c.columns, c.group);
  const std::vector<ZipperPlan> all = plans(weights, c.tokens);
  for (int64_t g = 0; g < x.groups; ++g) {
    std::fill(x.scale.begin(), x.scale.end(), 0.0f);
    for (int64_t t = 0; t < c.tokens; ++t) x.scale[static_cast<size_t>(t * x.groups + g)] = 1.0f;
    x.upload(device);
    std::vector<int64_t> sums;
    for (int64_t t = 0; t < c.tokens; ++t)
      for (int64_t o = 0; o < c.rows; ++o) {
        int64_t sum = 0;
        for (int64_t k = g * x.group; k < std::min((g + 1) * x.group, c.columns); ++k)
          sum +=
              x.codes[static_cast<size_t>(t * c.columns + k)] * codes[static_cast<size_t>(o * c.columns + k)];
        sums.push_back(sum);
      }
    int wrong = 0;
    for (const ZipperPlan& plan : all) {
      const std::vector<float> y = run<float>(weights, device, workspace, plan);
      for (size_t i = 0; i < y.size(); ++i) {
        // Exact in FP32 below 2^24; wider groups are sums of exact parts, each rounded once.
        const double sum = static_cast<double>(sums[i]);
        const double slack = std::abs(sum) < 16777216 ? 0 : FLT_EPSILON * std::abs(sum) * 8;
        if (!(std::abs(y[i] - sum) <= slack) && wrong++ < 3)
          ADD_FAILURE() << "result " << i << " group " << g << " " << name_of(plan) << ": " << y[i]
                        << " instead of " << sum;
      }
    }
    EXPECT_EQ(wrong, 0);
  }
}

// What the wide kernel's FP32 sums may be off by. It adds products of bytes that are not negative, with signs
// that alternate from step to step, and takes the rest away with what depends on the token alone; each
// multiply-add rounds to half a unit of a sum on the way, which a share of a tile may reach twice. Zeros are
// two FP16 numbers (2^-22) times S, added up in six products of 16.
double wide_rounding(const HostActivations& x, const int* codes, int64_t token) {
  double partial = 0, largest = 0, rest = 0, zeros = 0;
  int64_t steps = 0;
  for (int64_t k0 = 0; k0 < x.width; k0 += 128, ++steps) {
    const uint8_t* q = x.codes.data() + token * x.width;
    const int64_t end = std::min(k0 + 128, x.width);
    const int least = *std::min_element(q + k0, q + end);
    const auto at = static_cast<size_t>(token * x.groups + k0 / x.group);
    const double scale = static_cast<double>(x.scale[at]);
    double product = 0, sum = 0, row_sum = 0;
    for (int64_t k = k0; k < end; ++k) {
      product += (q[k] - least) * (steps % 2 == 0 ? codes[k] + 128 : 127 - codes[k]);
      sum += q[k] - least;
      row_sum += codes[k];
    }
    partial += steps % 2 == 0 ? scale * product : -scale * product;
    rest += steps % 2 == 0 ? scale * 128 * sum : -scale * 127 * sum;
    largest = std::max(largest, std::abs(partial));
    zeros += scale * std::abs((x.zero[at] - least) * row_sum);
  }
  return FLT_EPSILON / 2 * (2 * largest * static_cast<double>(steps + 2) + std::abs(rest) + zeros * 24);
}

void expect_close(const Case& c) {
  const NibblePlanes planes =
      test::random_planes(c.rows, c.columns, c.weight_group, c.residual_block, c.presence, 17, true);
  const HostActivations x = test::random_activations(c.tokens, c.columns, c.group, c.bits, c.zero_span, 18);
  const std::vector<int> codes = codes_of(planes);
  const ZipperMatrix weights(planes, c.group);
  ZipperWorkspace workspace(c.rows, c.tokens, c.columns);
  DeviceActivations device(c.tokens, c.columns, c.group);
  x.upload(device);
  std::vector<double> expected, bound, wide_bound;
  const int64_t finest = weights.drain;
  for (int64_t t = 0; t < c.tokens; ++t)
    for (int64_t o = 0; o < c.rows; ++o) {
      double y = planes.bias[static_cast<size_t>(o)], magnitude = std::abs(y);
      for (int64_t k0 = 0; k0 < c.columns; k0 += finest) {
        int64_t product = 0, sum = 0;
        for (int64_t k = k0; k < std::min(k0 + finest, c.columns); ++k) {
          product +=
              x.codes[static_cast<size_t>(t * c.columns + k)] * codes[static_cast<size_t>(o * c.columns + k)];
          sum += codes[static_cast<size_t>(o * c.columns + k)];
        }
        const auto at = static_cast<size_t>(t * x.groups + k0 / x.group);
        const int64_t weight_group = planes.weight_group == 0 ? c.columns : planes.weight_group;
        const double scale = static_cast<double>(x.scale[at]) *
                             planes.scale[static_cast<size_t>(o * planes.groups() + k0 / weight_group)] / 16;
        y += scale * static_cast<double>(product - x.zero[at] * sum);
        magnitude += scale * (std::abs(static_cast<double>(product)) +
                              std::abs(static_cast<double>(x.zero[at] * sum)));
      }
      expected.push_back(y);
      // A group is rounded at most three times on its way (s * scale, the product, the sum), and once more in
      // each of the sums after it.
      bound.push_back(magnitude * FLT_EPSILON / 2 *
                      static_cast<double>(weights.steps * (128 / finest) * 2 + 6));
      wide_bound.push_back(bound.back() + planes.scale[static_cast<size_t>(o * planes.groups())] / 16 *
                                              wide_rounding(x, codes.data() + o * c.columns, t));
    }
  for (const ZipperPlan& plan : plans(weights, c.tokens)) {
    SCOPED_TRACE(name_of(plan));
    const std::vector<float> y = run<float>(weights, device, workspace, plan);
    const std::vector<__nv_bfloat16> half = run<__nv_bfloat16>(weights, device, workspace, plan);
    int wrong = 0;
    const std::vector<double>& within = plan.kernel == ZipperPlan::Kernel::Wide ? wide_bound : bound;
    for (size_t i = 0; i < y.size(); ++i) {
      if (!(std::abs(y[i] - expected[i]) <= within[i]) && wrong++ < 3)
        ADD_FAILURE() << i << ": " << y[i] << " instead of " << expected[i] << " +- " << within[i];
      if (!(static_cast<float>(half[i]) == static_cast<float>(__float2bfloat16(y[i]))) && wrong++ < 3)
        ADD_FAILURE() << i << ": BF16 " << static_cast<float>(half[i]) << " of " << y[i];
    }
    EXPECT_EQ(wrong, 0);
  }
}

TEST(ZipperGemm, SumsAreExact) {
  // Odd tokens, rows and columns; every group size; all presence patterns; 4 and 8 bits.
  for (const Case& c : {Case{3, 200, 384, 0, 128, 128, 4, Presence::None, 0},
                        Case{130, 144, 256, 0, 128, 128, 8, Presence::All, 0},
                        Case{17, 129, 333, 0, 128, 128, 8, Presence::Random, 0},
                        Case{33, 97, 576, 64, 64, 64, 4, Presence::Random, 0},
                        Case{5, 300, 320, 32, 32, 32, 8, Presence::Corner, 0},
                        Case{70, 65, 512, 128, 128, 256, 8, Presence::Random, 0},
                        Case{9, 130, 640, 0, 64, 0, 8, Presence::Random, 0},
                        Case{1, 16, 128, 0, 128, 128, 8, Presence::All, 0}})
    expect_exact_sums(c);
}

TEST(ZipperGemm, AllOnesAtTheEdgeOfTheIntegerRange) {
  // |P| = 255 * 128 * 128, the largest that 128 columns reach.
  NibblePlanes planes = test::random_planes(128, 128, 0, 128, Presence::None, 3);
  std::fill(planes.hi.begin(), planes.hi.end(), uint8_t{0x88});
  std::fill(planes.scale.begin(), planes.scale.end(), 16.0f);
  HostActivations x = test::random_activations(4, 128, 128, 8, 0, 4);
  std::fill(x.codes.begin(), x.codes.end(), uint8_t{255});
  std::fill(x.scale.begin(), x.scale.end(), 1.0f);
  std::fill(x.zero.begin(), x.zero.end(), 0);
  const ZipperMatrix weights(planes, 128);
  ZipperWorkspace workspace(128, 4, 128);
  DeviceActivations device(4, 128, 128);
  x.upload(device);
  for (const ZipperPlan& plan : plans(weights, 4))
    for (const float y : run<float>(weights, device, workspace, plan)) EXPECT_EQ(y, -255.0f * 128 * 128);
}

TEST(ZipperGemm, TheLargestSumsOfUnsignedBytesAreExact) {
  // The wide kernel multiplies q - 0 by c + 128 in even steps and by 127 - c in odd ones: at most 255 * 255,
  // of which 127 make its largest sum; a code of 0 keeps it from counting from another.
  constexpr int64_t kRows = 128, kColumns = 512, kTokens = 70;
  NibblePlanes planes = test::random_planes(kRows, kColumns, 0, 128, Presence::All, 3);
  std::fill(planes.scale.begin(), planes.scale.end(), 16.0f);
  for (int64_t o = 0; o < kRows; ++o)
    for (int64_t k = 0; k < kColumns; ++k) {
      const bool odd = k / 128 % 2 != 0;
      planes.hi[static_cast<size_t>((o * kColumns + k) / 2)] = odd ? 0x88 : 0x77;
      const int64_t block = o / kResidualRows * (kColumns / 128) + k / 128;
      planes.lo[static_cast<size_t>((block * kResidualRows + o % kResidualRows) * 64 + k % 128 / 2)] =
          odd ? 0x00 : 0xFF;
    }
  const ZipperMatrix weights(planes, 128);
  ZipperWorkspace workspace(kRows, kTokens, kColumns);
  for (const int bits : {4, 8}) {
    const int most = bits == 4 ? 15 : 255;
    HostActivations x = test::random_activations(kTokens, kColumns, 128, bits, 0, 4);
    std::fill(x.zero.begin(), x.zero.end(), 0);
    for (size_t i = 0; i < x.codes.size(); ++i) x.codes[i] = i % 128 == 5 ? 0 : static_cast<uint8_t>(most);
    DeviceActivations device(kTokens, kColumns, 128);
    for (int64_t g = 0; g < 4; ++g) {
      for (size_t i = 0; i < x.scale.size(); ++i) x.scale[i] = static_cast<int64_t>(i % 4) == g ? 1.0f : 0.0f;
      x.upload(device);
      for (const ZipperPlan& plan : plans(weights, kTokens)) {
        SCOPED_TRACE(name_of(plan));
        const float sum = 127.0f * static_cast<float>(most) * (g % 2 != 0 ? -128.0f : 127.0f);
        for (const float y : run<float>(weights, device, workspace, plan)) ASSERT_EQ(y, sum);
      }
    }
  }
}

TEST(ZipperGemm, ZerosOfManyStepsAreSubtracted) {
  // More steps than one step of zeros takes, and shares of tiles that begin and end within one; S beyond what
  // FP16 holds exactly. Codes are 0: only -z S is left.
  constexpr int64_t kRows = 130, kColumns = 128 * 71, kTokens = 66;
  const NibblePlanes planes = [] {
    NibblePlanes all = test::random_planes(kRows, kColumns, 0, 128, Presence::Random, 31);
    std::fill(all.scale.begin(), all.scale.end(), 16.0f);
    for (size_t i = 0; i < all.hi.size(); i += 3) all.hi[i] = 0x77;
    return all;
  }();
  const std::vector<int> codes = codes_of(planes);
  HostActivations x = test::random_activations(kTokens, kColumns, 128, 8, 0, 32);
  std::fill(x.codes.begin(), x.codes.end(), uint8_t{0});
  std::fill(x.scale.begin(), x.scale.end(), 1.0f);
  for (size_t i = 0; i < x.zero.size(); ++i) x.zero[i] = i % 5 == 0 ? static_cast<int>(i % 7) - 3 : 0;
  const ZipperMatrix weights(planes, 128);
  ZipperWorkspace workspace(kRows, kTokens, kColumns);
  DeviceActivations device(kTokens, kColumns, 128);
  x.upload(device);
  for (const ZipperPlan& plan : plans(weights, kTokens)) {
    SCOPED_TRACE(name_of(plan));
    const std::vector<float> y = run<float>(weights, device, workspace, plan);
    for (int64_t t = 0; t < kTokens; ++t)
      for (int64_t o = 0; o < kRows; ++o) {
        int64_t sum = 0;
        for (int64_t k = 0; k < kColumns; ++k)
          sum -= static_cast<int64_t>(x.zero[static_cast<size_t>(t * x.groups + k / 128)]) *
                 codes[static_cast<size_t>(o * kColumns + k)];
        ASSERT_EQ(y[static_cast<size_t>(t * kRows + o)], static_cast<float>(sum)) << t << ", " << o;
      }
  }
}

TEST(ZipperGemm, ResultsAreWithinRounding) {
  for (const Case& c : {Case{1, 250, 1000, 0, 128, 128, 4, Presence::Random, 0},
                        Case{33, 190, 512, 128, 128, 128, 4, Presence::Random, 0},
                        Case{65, 300, 576, 64, 64, 64, 8, Presence::Random, 500},
                        Case{20, 77, 416, 32, 128, 64, 4, Presence::All, 0},
                        Case{150, 270, 512, 0, 128, 128, 8, Presence::Random, 32767},
                        Case{40, 100, 300, 0, 256, 0, 8, Presence::None, 32767},
                        Case{128, 128, 256, 0, 128, 32, 8, Presence::Corner, 32767},
                        Case{213, 264, 1920, 0, 128, 128, 8, Presence::Random, 700},
                        Case{400, 256, 1280, 0, 128, 256, 4, Presence::Random, 20},
                        Case{11, 600, 6000, 0, 128, 128, 4, Presence::Random, 40}})
    expect_close(c);
}

// Shares of a tile are added up in the order of K wherever they meet: the same bits, every time.
TEST(ZipperGemm, SharesGiveTheSameBitsInClustersAndInMemory) {
  int checked = 0;
  for (const int64_t tokens : {17, 33, 64, 65, 100, 128})
    for (const Case& c : {Case{tokens, 384, 640, 0, 128, 128, 4, Presence::Random, 0},
                          Case{tokens, 300, 896, 0, 128, 128, 8, Presence::All, 500},
                          Case{tokens, 384, 896, 64, 64, 64, 4, Presence::Random, 0},
                          Case{tokens, 130, 1400, 32, 32, 32, 8, Presence::Corner, 90}}) {
      const NibblePlanes planes =
          test::random_planes(c.rows, c.columns, c.weight_group, c.residual_block, c.presence, 41, true);
      const HostActivations x =
          test::random_activations(c.tokens, c.columns, c.group, c.bits, c.zero_span, 42);
      const ZipperMatrix weights(planes, c.group);
      ZipperWorkspace workspace(c.rows, c.tokens);
      DeviceActivations device(c.tokens, c.columns, c.group);
      x.upload(device);
      for (const ZipperPlan& plan : cluster_plans(weights, c.tokens)) {
        SCOPED_TRACE(fmt::format("{} tokens, {} columns: {}", c.tokens, c.columns, name_of(plan)));
        ZipperPlan memory = plan;
        memory.cluster = 1;
        const std::vector<float> expected = run<float>(weights, device, workspace, memory);
        for (int round = 0; round < 3; ++round)
          ASSERT_EQ(run<float>(weights, device, workspace, plan), expected);
        ++checked;
      }
    }
  EXPECT_GT(checked, 200);
}

// Clusters beyond what the GPU runs at once, and shares of few steps beside the launch of others.
TEST(ZipperGemm, ManyClustersFollowEachOther) {
  constexpr int64_t kTokens = 64, kRows = 128 * 96, kColumns = 128 * 7;
  const NibblePlanes planes = test::random_planes(kRows, kColumns, 0, 128, Presence::Random, 43);
  const HostActivations x = test::random_activations(kTokens, kColumns, 128, 4, 0, 44);
  const ZipperMatrix weights(planes, 128);
  ZipperWorkspace workspace(kRows, kTokens);
  DeviceActivations device(kTokens, kColumns, 128);
  x.upload(device);
  for (const ZipperPlan& plan : cluster_plans(weights, kTokens)) {
    SCOPED_TRACE(name_of(plan));
    ZipperPlan memory = plan;
    memory.cluster = 1;
    if (int64_t{2} * kTileRows * plan.tile_tokens * plan.workers > std::ssize(workspace.partial)) continue;
    EXPECT_EQ(run<float>(weights, device, workspace, plan), run<float>(weights, device, workspace, memory));
  }
  const size_t size = static_cast<size_t>(kTokens * kRows);
  const std::vector<float> once = run<float>(weights, device, workspace, cluster_plan(64, 96, 4, 1));
  DeviceBuffer<float> y(size);
  for (int i = 0; i < 20; ++i)
    ops::zipper_gemm_planned(weights, device, workspace, cluster_plan(64, 96, i % 2 == 0 ? 4 : 2, 1),
                             y.data(), kRows, nullptr, true);
  ops::zipper_gemm_planned(weights, device, workspace, cluster_plan(64, 96, 4, 1), y.data(), kRows, nullptr,
                           true);
  std::vector<float> out(size);
  y.download(out.data(), size);
  EXPECT_EQ(out, once);
}

TEST(ZipperGemm, ATokensResultDoesNotDependOnItsNeighbours) {
  const NibblePlanes planes = test::random_planes(128, 512, 0, 128, Presence::Random, 5);
  const ZipperMatrix weights(planes, 128);
  ZipperWorkspace workspace(128, 16);
  HostActivations x = test::random_activations(8, 512, 128, 8, 0, 6);
  DeviceActivations device(8, 512, 128);
  x.upload(device);
  for (const ZipperPlan& plan : {gemm_plan(16, 1, false), cluster_plan(16, 1, 4, 1),
                                 cluster_plan(64, 1, 2, 1), decode_plan(8, 1, 2)}) {
    x.zero[4] = x.zero[5] = x.zero[6] = x.zero[7] = 3;
    x.upload(device);
    const std::vector<float> before = run<float>(weights, device, workspace, plan);
    for (int64_t g = 0; g < x.groups; ++g) x.zero[static_cast<size_t>(x.groups + g)] = -32767;  // of token 1
    x.upload(device);
    const std::vector<float> after = run<float>(weights, device, workspace, plan);
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + 128, after.begin()));
    EXPECT_TRUE(std::equal(before.begin() + 256, before.end(), after.begin() + 256));
    EXPECT_FALSE(std::equal(before.begin() + 128, before.begin() + 256, after.begin() + 128));
  }
}

// Copies of weights that are not in L2 come out of order: a step must not take what a ring held before. With
// scales of 1 every sum on the way is an integer below 2^24, so that any order of FP32 sums gives the same.
TEST(ZipperGemm, WideTakesNoStaleWeights) {
  constexpr int64_t kTokens = 512, kRows = 1000, kColumns = 1536;
  NibblePlanes planes = test::random_planes(kRows, kColumns, 0, 128, Presence::Random, 27);
  std::fill(planes.scale.begin(), planes.scale.end(), 16.0f);
  HostActivations x = test::random_activations(kTokens, kColumns, 0, 4, 0, 28);
  std::fill(x.scale.begin(), x.scale.end(), 1.0f);
  const ZipperMatrix weights(planes, 0);
  ZipperWorkspace workspace(kRows, kTokens, kColumns);
  DeviceActivations device(kTokens, kColumns, 0);
  x.upload(device);
  const std::vector<float> expected = run<float>(weights, device, workspace, gemm_plan(64, 8, false));
  DeviceBuffer<uint8_t> elsewhere(size_t{256} << 20);  // several times L2
  // Partial sums have room for a CTA an SM, and a worker is two: some Hopper GPUs have fewer than 120 SMs.
  const int sharing = std::min(60, workspace.processors / 2);
  for (const ZipperPlan& plan :
       {wide_plan(128, 16, false), wide_plan(128, sharing, true), wide_plan(256, 8, false)})
    for (int round = 0; round < 100; ++round) {
      cudaMemset(elsewhere.data(), round, elsewhere.bytes());
      ASSERT_EQ(run<float>(weights, device, workspace, plan), expected) << name_of(plan) << " " << round;
    }
}

TEST(ZipperGemm, TheTablesPlanRuns) {
  for (const int64_t tokens : {1, 16, 17, 64, 65, 200, 300}) {
    const NibblePlanes planes = test::random_planes(384, 1024, 0, 128, Presence::Random, 25);
    const HostActivations x = test::random_activations(tokens, 1024, 128, 4, 0, 26);
    const ZipperMatrix weights(planes, 128);
    ZipperWorkspace workspace(384, tokens, 1024);
    DeviceActivations device(tokens, 1024, 128);
    x.upload(device);
    const auto size = static_cast<size_t>(tokens * 384);
    DeviceBuffer<float> y(size);
    ops::zipper_gemm(weights, device, workspace, y.data(), 384, nullptr);
    std::vector<float> out(size);
    y.download(out.data(), size);
    const std::vector<float> same = run<float>(weights, device, workspace, gemm_plan(16, 1, false));
    // Another order of the same FP32 sums: a few roundings of results of magnitude up to 100.
    for (size_t i = 0; i < size; ++i)
      ASSERT_NEAR(out[i], same[i], 1e-3f) << tokens << " tokens, result " << i;
  }
}

TEST(ZipperMatrix, RefusesMalformedPlanes) {  // before it touches a GPU
  const NibblePlanes good = test::random_planes(40, 192, 64, 64, Presence::All, 5, true);
  const auto broken = [&](auto change) {
    NibblePlanes planes = good;
    change(planes);
    EXPECT_THROW(ZipperMatrix(planes, 64), Error);
  };
  EXPECT_THROW(ZipperMatrix(good, 96), Error);
  EXPECT_THROW(ZipperMatrix(test::random_planes(16, 192, 48, 64, Presence::None, 5), 128), Error);
  broken([](NibblePlanes& planes) { planes.rows = 0; });
  broken([](NibblePlanes& planes) { planes.columns = int64_t{1} << 40; });
  broken([](NibblePlanes& planes) { planes.residual_block = 0; });
  broken([](NibblePlanes& planes) { planes.hi.pop_back(); });
  broken([](NibblePlanes& planes) { planes.scale.push_back(1); });
  broken([](NibblePlanes& planes) { planes.lo.pop_back(); });
  broken([](NibblePlanes& planes) { planes.bias.pop_back(); });
  broken([](NibblePlanes& planes) { planes.residual_index.back() = 1 << 20; });
  broken([](NibblePlanes& planes) { planes.residual_index.front() = -1; });
}

TEST(ZipperGemm, RefusesWhatItCannotDo) {
  const NibblePlanes good = test::random_planes(16, 192, 64, 64, Presence::None, 5);
  const ZipperMatrix weights(good, 64);
  ZipperWorkspace workspace(16, 4);
  DeviceActivations other(4, 192, 128);
  DeviceBuffer<float> y(64);
  EXPECT_THROW(ops::zipper_gemm(weights, other, workspace, y.data(), 16, nullptr), Error);
  DeviceActivations x(4, 192, 64);
  for (const ZipperPlan& plan :
       {cluster_plan(32, 1, 4, 1),  // more CTAs than steps
        cluster_plan(128, 1, 2, 1), ZipperPlan{ZipperPlan::Kernel::Gemm, 64, 3, 0, true, 2}})
    EXPECT_THROW(ops::zipper_gemm_planned(weights, x, workspace, plan, y.data(), 16, nullptr, false), Error);
}

}  // namespace
}  // namespace quatrain
