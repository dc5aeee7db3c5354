// Products of few tokens that norm their input or make the next product's codes, against the kernels that do
// each alone: every bit.
#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/cuda/zipper_decode.h"
#include "random_matrix.h"

namespace quatrain {
namespace {

using ops::DeviceActivations;
using ops::DeviceBuffer;
using ops::RowOptions;
using ops::ZipperMatrix;
using ops::ZipperPlan;
using test::Presence;

std::vector<float> normals(int64_t size, float offset, uint64_t seed) {
  return test::random_normals(size, offset, 1.5f, seed);
}

DeviceBuffer<float> upload(const std::vector<float>& x) {
  return {x.data(), x.size()};
}

template <typename T>
std::vector<T> values(const DeviceBuffer<T>& x) {
  std::vector<T> out(x.size());
  x.download(out.data(), out.size());
  return out;
}

void expect_same_codes(const DeviceActivations& a, const DeviceActivations& b) {
  EXPECT_EQ(values(a.codes), values(b.codes));
  EXPECT_EQ(values(a.scale), values(b.scale));
  EXPECT_EQ(values(a.zero), values(b.zero));
}

struct Case {
  int64_t tokens, rows, columns, weight_group, group;
  int bits, hadamard;
  float offset = 0;  // of the values: far from zero, zeros remain
};

constexpr Case kNormed[] = {{1, 200, 4096, 0, 128, 4, 0},       {1, 48, 4096, 0, 128, 8, 128},
                            {1, 64, 576, 64, 64, 4, 0, 40},     {1, 100, 6016, 128, 0, 8, 0},
                            {1, 130, 1000, 32, 32, 4, 8, -300}, {1, 33, 8192, 0, 256, 4, 256}};

TEST(ZipperDecode, NormsRowsAsTheirOwnKernelDoes) {
  for (const Case& c : kNormed)
    for (const bool adds : {false, true}) {
      SCOPED_TRACE(testing::Message()
                   << c.tokens << " x " << c.columns << " group " << c.group << " adds " << adds);
      const ZipperMatrix weights(
          test::random_planes(c.rows, c.columns, c.weight_group, 128, Presence::Random, 3, true), c.group);
      const int64_t size = c.tokens * c.columns;
      const DeviceBuffer<float> x = upload(normals(size, c.offset, 5)), more = upload(normals(size, 0, 6)),
                                gain = upload(normals(c.columns, 1, 7));
      ops::NormedRows rows{x.data(), c.tokens, c.columns, 1e-5f, {}};
      rows.options.policy = {c.bits, c.group, false};
      rows.options.gain = gain.data();
      rows.options.hadamard = c.hadamard;
      std::vector<float> y[2], sums[2];
      for (const bool fused : {true, false}) {
        DeviceBuffer<float> out(static_cast<size_t>(c.tokens * c.rows)), sum(static_cast<size_t>(size));
        if (adds) rows.options.add = more.data(), rows.options.sum = sum.data();
        ASSERT_TRUE(ops::decode_takes_rows(weights, rows));
        DeviceActivations codes(c.tokens, c.columns, c.group);
        const ZipperPlan plan = ops::plan_decode(c.tokens, c.rows, 3);
        ops::DecodeInput input{nullptr, &rows};
        if (!fused) {
          ops::rms_norm_quantize(x.data(), c.columns, 1e-5f, rows.options, codes, nullptr);
          input = {&codes, nullptr};
        }
        ops::zipper_decode(weights, input, plan, out.data(), c.rows, {});
        ops::cuda_check(cudaDeviceSynchronize(), "product");
        y[fused] = values(out);
        sums[fused] = values(sum);
      }
      EXPECT_EQ(y[0], y[1]);
      EXPECT_EQ(sums[0], sums[1]);
      EXPECT_NE(y[0], std::vector<float>(y[0].size()));
    }
}

constexpr Case kGated[] = {{1, 0, 512, 0, 128, 4, 128},
                           {3, 0, 512, 0, 128, 8, 0},
                           {8, 0, 1024, 64, 64, 4, 32},
                           {2, 0, 384, 0, 32, 4, 8},
                           {13, 0, 256, 0, 128, 4, 0}};

TEST(ZipperDecode, MakesTheCodesOfGatesAndUps) {
  for (const Case& c : kGated)
    for (const bool normed : {false, true}) {
      if (normed && c.tokens > 1) continue;
      SCOPED_TRACE(testing::Message()
                   << c.tokens << " x " << c.columns << " group " << c.group << " normed " << normed);
      const int64_t hidden = 640;
      const ZipperMatrix weights(
          test::random_planes(2 * c.columns, hidden, c.weight_group, 128, Presence::Random, 3, true), 128);
      const DeviceBuffer<float> x = upload(normals(c.tokens * hidden, 0, 5)),
                                gain = upload(normals(c.columns, 1, 7));
      ops::NormedRows rows{x.data(), c.tokens, hidden, 1e-5f, {}};
      rows.options.policy = {8, 128, false};
      DeviceActivations input(c.tokens, hidden, 128), fused(c.tokens, c.columns, c.group),
          apart(c.tokens, c.columns, c.group);
      ops::rms_norm_quantize(x.data(), hidden, 1e-5f, rows.options, input, nullptr);
      RowOptions options;
      options.policy = {c.bits, c.group, false};
      options.hadamard = c.hadamard;
      options.gain = gain.data();
      const int parts = static_cast<int>(c.columns / 128);
      for (const int processors : {parts, (parts + 1) / 2}) {
        if (!ops::decode_takes_gate(weights, c.tokens, options, fused, processors)) continue;
        const ops::DecodeInput from =
            normed ? ops::DecodeInput{nullptr, &rows} : ops::DecodeInput{&input, nullptr};
        ops::zipper_decode_gated(weights, from, options, processors, fused, {});
        DeviceBuffer<float> y(static_cast<size_t>(c.tokens * 2 * c.columns));
        ops::zipper_decode(weights, {&input, nullptr},
                           {ZipperPlan::Kernel::Decode, c.tokens <= 8 ? 8 : 16, 2, 1, false}, y.data(),
                           2 * c.columns, {});
        apart.tokens = c.tokens;
        ops::silu_mul_quantize(static_cast<const float*>(y.data()), 2 * c.columns, options, apart, nullptr);
        ops::cuda_check(cudaDeviceSynchronize(), "product");
        EXPECT_EQ(fused.tokens, c.tokens);
        expect_same_codes(fused, apart);
      }
      EXPECT_TRUE(ops::decode_takes_gate(weights, c.tokens, options, fused, parts));
    }
}

TEST(ZipperDecode, NamesValuesThatAreNotFinite) {
  const ZipperMatrix weights(test::random_planes(16, 256, 0, 128, Presence::None, 3), 128);
  std::vector<float> x = normals(256, 0, 5);
  x[77] = NAN;
  const DeviceBuffer<float> device = upload(x);
  DeviceBuffer<unsigned long long> bad(1);
  cudaMemset(bad.data(), 0xFF, 8);
  ops::NormedRows rows{device.data(), 1, 256, 1e-5f, {}};
  rows.options.policy = {4, 128, false};
  rows.options.bad = bad.data();
  DeviceBuffer<float> y(16);
  ops::zipper_decode(weights, {nullptr, &rows}, ops::plan_decode(1, 16, 3), y.data(), 16, {});
  ops::cuda_check(cudaDeviceSynchronize(), "product");
  EXPECT_EQ(values(bad)[0], 77u);
}

TEST(ZipperDecode, RefusesWhatItCannotDo) {
  const ZipperMatrix weights(test::random_planes(256, 256, 0, 128, Presence::None, 3), 128);
  DeviceBuffer<float> x(512), y(512);
  ops::NormedRows rows{x.data(), 1, 256, 1e-5f, {}};
  rows.options.policy = {4, 128, false};
  rows.options.add = y.data();
  rows.options.sum = x.data();  // every CTA reads x
  const ZipperPlan plan = ops::plan_decode(1, 256, 3);
  EXPECT_THROW(ops::zipper_decode(weights, {nullptr, &rows}, plan, y.data(), 256, {}), Error);
  EXPECT_THROW(ops::zipper_decode(weights, {nullptr, nullptr}, plan, y.data(), 256, {}), Error);
  DeviceActivations input(1, 256, 128), narrow(1, 64, 64);
  input.tokens = 1;
  EXPECT_THROW(ops::zipper_decode_gated(weights, {&input, nullptr}, {}, 1, narrow, {}), Error);
}

}  // namespace
}  // namespace quatrain
