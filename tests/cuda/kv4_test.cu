#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "base/half.h"
#include "base/number_format.h"
#include "ops/cuda/gpu.h"
#include "ops/cuda/kv4_decode.h"

namespace quatrain {
namespace {

using ops::DeviceBuffer;
using ops::DeviceKvLayout;
using ops::KvRows;

// kv_group() of ops/kv_cache.h for 4 asymmetric bits, written again.
QuantizedGroup kv_group(const std::vector<float>& x) {
  const QuantizedGroup exact =
      quantize_group(x.data(), static_cast<int64_t>(x.size()), 4, false, static_cast<int64_t>(x.size()));
  if (exact.scale == 1 && exact.zero == 0 && x[0] == 0) return exact;
  const float low = *std::min_element(x.begin(), x.end());
  uint16_t half = float_to_fp16(std::max(exact.scale, 0x1p-24f));
  if (std::fabs(std::rint(-low / fp16_to_float(half))) > 32767) ++half;
  return {fp16_to_float(half), static_cast<int32_t>(std::rint(-low / fp16_to_float(half)))};
}

struct Row {
  std::vector<uint8_t> codes;
  QuantizedGroup group;
  explicit Row(const std::vector<float>& x = {0}) : group(kv_group(x)) {
    for (const float value : x) codes.push_back(quantize_value(value, group, 4));
  }
  double value(size_t d) const { return static_cast<double>(group.scale) * (codes[d] - group.zero); }
};

struct Cache {
  DeviceKvLayout layout;
  std::vector<int> lengths;
  int max_pages;
  std::vector<int32_t> table;
  std::vector<std::vector<std::vector<Row>>> keys, values;  // [sequence][head][token]
  DeviceBuffer<uint8_t> pages;
  DeviceBuffer<int32_t> device_table, device_lengths;

  // Appends until every sequence has its length; a finished sequence writes its last token again.
  Cache(DeviceKvLayout layout, std::vector<int> all_lengths, float offset)
      : layout(layout), lengths(std::move(all_lengths)) {
    const auto sequences = static_cast<int>(lengths.size());
    const int longest = *std::max_element(lengths.begin(), lengths.end());
    max_pages = (longest + ops::kKvPageTokens - 1) / ops::kKvPageTokens;
    table.resize(static_cast<size_t>(sequences * max_pages));
    std::iota(table.begin(), table.end(), 0);
    std::mt19937 random(5);
    std::shuffle(table.begin(), table.end(), random);
    pages = DeviceBuffer<uint8_t>(table.size() * static_cast<size_t>(layout.bytes()));
    cudaMemset(pages.data(), 0xFF, pages.bytes());  // slots past a sequence's end hold NaN scales
    device_table = DeviceBuffer<int32_t>(table.data(), table.size());
    device_lengths = DeviceBuffer<int32_t>(lengths.size());
    keys.resize(lengths.size());
    values.resize(lengths.size());
    for (size_t i = 0; i < lengths.size(); ++i) {
      keys[i].assign(static_cast<size_t>(layout.kv_heads), std::vector<Row>(static_cast<size_t>(lengths[i])));
      values[i] = keys[i];
    }
    std::normal_distribution<float> normal(offset, 1.0f);
    const int64_t stride = 2 * layout.kv_heads * layout.head_dim;
    std::vector<__nv_bfloat16> rows(static_cast<size_t>(sequences * stride));
    DeviceBuffer<__nv_bfloat16> device(rows.size());
    for (int step = 0; step < longest; ++step) {
      std::vector<int32_t> now;
      for (int i = 0; i < sequences; ++i) {
        now.push_back(std::min(step + 1, lengths[static_cast<size_t>(i)]));
        for (int64_t part = 0; part < 2 * layout.kv_heads; ++part) {
          std::vector<float> x;
          for (int d = 0; d < layout.head_dim; ++d) {
            rows[static_cast<size_t>(i * stride + part * layout.head_dim + d)] =
                __float2bfloat16(normal(random));
            x.push_back(__bfloat162float(rows[static_cast<size_t>(i * stride + part * layout.head_dim + d)]));
          }
          auto& of = part < layout.kv_heads ? keys : values;
          of[static_cast<size_t>(i)][static_cast<size_t>(part % layout.kv_heads)]
            [static_cast<size_t>(now.back() - 1)] = Row(x);
        }
      }
      device.upload(rows.data(), rows.size());
      device_lengths.upload(now.data(), now.size());
      ops::kv_append(layout, pages.data(), sequences_view(), device.data(),
                     device.data() + layout.kv_heads * layout.head_dim, stride, nullptr, nullptr);
    }
    ops::cuda_check(cudaDeviceSynchronize(), "KV4 append");
  }
  KvRows sequences_view() const {
    return {static_cast<int>(lengths.size()), max_pages, device_table.data(), device_lengths.data()};
  }
};

TEST(Kv4, AppendsTheCodesOfTheCpu) {
  for (const int head_dim : {64, 128, 256}) {
    SCOPED_TRACE(head_dim);
    const Cache cache({2, head_dim}, {1, 70, 65}, 3.0f);
    std::vector<uint8_t> pages(cache.pages.size());
    cache.pages.download(pages.data(), pages.size());
    int wrong = 0;
    for (size_t i = 0; i < cache.lengths.size(); ++i)
      for (int head = 0; head < 2; ++head)
        for (int token = 0; token < cache.lengths[i]; ++token)
          for (int which = 0; which < 2; ++which) {
            const Row& row =
                (which == 0 ? cache.keys
                            : cache.values)[i][static_cast<size_t>(head)][static_cast<size_t>(token)];
            const int page =
                cache.table[i * static_cast<size_t>(cache.max_pages) + static_cast<size_t>(token / 64)];
            const uint8_t* at = pages.data() + page * cache.layout.bytes() + head * cache.layout.head_bytes();
            for (int d = 0; d < head_dim; ++d) {
              const uint8_t byte = at[which * cache.layout.codes_bytes() + token % 64 * head_dim / 2 + d / 2];
              wrong += (d % 2 == 0 ? byte & 15 : byte >> 4) != row.codes[static_cast<size_t>(d)];
            }
            uint32_t pair;
            std::memcpy(&pair, at + 2 * cache.layout.codes_bytes() + (which * 64 + token % 64) * 4, 4);
            wrong += fp16_to_float(static_cast<uint16_t>(pair)) != row.group.scale;
            wrong += static_cast<int16_t>(pair >> 16) != row.group.zero;
          }
    EXPECT_EQ(wrong, 0);
  }
}

enum class Kernel { Decode, Row, Tile };

void expect_attention(Kernel kernel, int head_dim, int kv_heads, int group, const std::vector<int>& lengths,
                      float offset) {
  SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " group " << group << " offset " << offset);
  const Cache cache({kv_heads, head_dim}, lengths, offset);
  const int heads = kv_heads * group;
  std::mt19937 random(15);
  std::normal_distribution<float> normal;
  std::vector<float> q;
  for (size_t i = 0; i < lengths.size() * static_cast<size_t>(heads * head_dim); ++i)
    q.push_back(__half2float(__float2half(normal(random))));
  const DeviceBuffer<float> device_q(q.data(), q.size());
  DeviceBuffer<float> out(q.size());
  cudaMemset(out.data(), 0xFF, out.bytes());
  ops::KvWorkspace workspace(static_cast<int>(lengths.size()), heads, head_dim);
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  const int longest = *std::max_element(lengths.begin(), lengths.end());
  const ops::KvAttention attention{heads,      scale,           0, longest, device_q.data(), heads * head_dim,
                                   out.data(), heads * head_dim};
  std::vector<ops::QueryTile> tiles;
  for (size_t i = 0; i < lengths.size(); ++i)
    tiles.push_back({static_cast<int>(i), 1, lengths[i] - 1, static_cast<int>(i)});
  const DeviceBuffer<ops::QueryTile> device_tiles(tiles.data(), tiles.size());
  for (int repeat = 0; repeat < 2; ++repeat) {  // the counters must be back at zero
    if (kernel == Kernel::Decode)
      ops::kv4_decode_attention(cache.layout, cache.pages.data(), cache.sequences_view(), attention,
                                workspace, nullptr);
    else if (kernel == Kernel::Row)
      ops::row_attention(cache.layout, cache.pages.data(), cache.sequences_view(), attention, workspace,
                         nullptr);
    else
      ops::tile_attention(cache.layout, cache.pages.data(), cache.sequences_view(), device_tiles.data(),
                          static_cast<int>(tiles.size()), attention, nullptr);
  }
  ops::cuda_check(cudaDeviceSynchronize(), "KV4 attention");
  std::vector<float> got(q.size());
  out.download(got.data(), got.size());
  int wrong = 0;
  for (size_t i = 0; i < lengths.size(); ++i)
    for (int h = 0; h < heads; ++h) {
      const auto& keys = cache.keys[i][static_cast<size_t>(h / group)];
      const auto& values = cache.values[i][static_cast<size_t>(h / group)];
      const float* query = q.data() + (i * static_cast<size_t>(heads) + static_cast<size_t>(h)) *
                                          static_cast<size_t>(head_dim);
      std::vector<double> p;
      for (const Row& key : keys) {
        double score = 0;
        for (int d = 0; d < head_dim; ++d)
          score += static_cast<double>(query[d]) * key.value(static_cast<size_t>(d));
        p.push_back(score * scale);
      }
      const double largest = *std::max_element(p.begin(), p.end());
      double sum = 0;
      for (double& x : p) sum += x = std::exp(x - largest);
      for (int d = 0; d < head_dim; ++d) {
        double expected = 0, magnitude = 0;
        for (size_t t = 0; t < p.size(); ++t) {
          const double term = p[t] / sum * values[t].value(static_cast<size_t>(d));
          expected += term;
          magnitude += std::abs(term);
        }
        const double value =
            got[(i * static_cast<size_t>(heads) + static_cast<size_t>(h)) * static_cast<size_t>(head_dim) +
                static_cast<size_t>(d)];
        // FP16 probabilities round by 2^-11 each, FP16 keys and values (tiles) too; scores' error, about
        // 2^-20 of |q| |k| (1 + |offset|), with FP16 keys 2^-12 of their terms' root sum of squares, moves
        // probabilities by as much.
        const double keys_rounded = kernel == Kernel::Tile ? 0x1p-9 * (1 + std::abs(offset)) : 0;
        const double slack = magnitude * (0x1p-10 + keys_rounded + 0x1p-14 * (1 + std::abs(offset)));
        if (!(std::abs(value - expected) <= slack) && wrong++ < 3)
          ADD_FAILURE() << "sequence " << i << " head " << h << " column " << d << ": " << value
                        << " instead of " << expected << " +- " << slack;
      }
    }
  EXPECT_EQ(wrong, 0);
}

TEST(Kv4, AttendsOverPages) {
  for (const Kernel kernel : {Kernel::Decode, Kernel::Row, Kernel::Tile}) {
    SCOPED_TRACE(static_cast<int>(kernel));
    expect_attention(kernel, 128, 2, 4, {1, 70, 333, 16}, 0);
    expect_attention(kernel, 64, 3, 3, {129, 64, 1000}, 0);
    expect_attention(kernel, 256, 1, 8, {200}, 0);
    expect_attention(kernel, 128, 1, 1, {65, 300}, 5);
  }
}

// Where clusters are not to be had, the parts of a sequence go through memory.
TEST(Kv4, PartsMeetInMemoryToo) {
  ops::use_gpu_kernels(ops::GpuKernels::Bytes);
  expect_attention(Kernel::Decode, 128, 2, 4, {1, 70, 333, 16}, 0);
  expect_attention(Kernel::Decode, 64, 1, 3, {1300, 40}, 2);
  ops::use_gpu_kernels(std::nullopt);
}

// CTAs that fill an SM each, for many sequences; more sequences than SMs.
TEST(Kv4, AttendsWithWideAndWithNarrowCtas) {
  std::vector<int> lengths;
  for (int i = 0; i < 15; ++i) lengths.push_back(i % 5 == 0 ? 530 + i : 3 * i + 1);
  expect_attention(Kernel::Decode, 64, 8, 1, lengths, 0);
  for (int i = 0; i < 15; ++i) lengths[static_cast<size_t>(i)] = 4 * i + 1;
  lengths.insert(lengths.end(), {33, 97});
  expect_attention(Kernel::Decode, 64, 8, 2, lengths, 0);
}

// Attention that turns heads, stores k and v and makes codes, against the kernels that do each alone: every
// bit.
void expect_same_step(int head_dim, int kv_heads, int group, std::vector<int> lengths, int code_group,
                      bool norms) {
  SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " group " << group << " codes "
                                  << code_group);
  const Cache cache({kv_heads, head_dim}, lengths, 0.5f);
  const auto rows = static_cast<int64_t>(lengths.size());
  const int64_t heads = kv_heads * group, width = heads * head_dim, stride = width + 2 * kv_heads * head_dim;
  std::mt19937 random(25);
  std::normal_distribution<float> normal;
  const auto normals = [&](int64_t size) {
    std::vector<float> x(static_cast<size_t>(size));
    for (float& value : x) value = normal(random);
    return DeviceBuffer<float>(x.data(), x.size());
  };
  DeviceBuffer<float> x = normals(rows * stride);
  const DeviceBuffer<float> cosine = normals(rows * head_dim / 2), sine = normals(rows * head_dim / 2),
                            signs = normals(head_dim), query_norm = normals(head_dim),
                            key_norm = normals(head_dim);
  ops::HeadRotation rotation{heads, kv_heads,     head_dim,      nullptr,     nullptr,
                             1e-5f, head_dim / 2, cosine.data(), sine.data(), signs.data()};
  if (norms) rotation.query_norm = query_norm.data(), rotation.key_norm = key_norm.data();
  const int longest = *std::max_element(lengths.begin(), lengths.end());
  DeviceBuffer<float> out(static_cast<size_t>(rows * width));
  ops::KvWorkspace workspace(static_cast<int>(rows), static_cast<int>(heads), head_dim);
  const ops::KvAttention attention{
      static_cast<int>(heads), 0.1f, 0, longest, x.data(), stride, out.data(), width};
  std::vector<uint8_t> before(cache.pages.size()), pages[2];
  cache.pages.download(before.data(), before.size());
  ops::DeviceActivations codes[2];
  for (const bool fused : {true, false}) {
    DeviceBuffer<uint8_t> stored(before.data(), before.size());
    ops::DeviceActivations& of = codes[fused] = ops::DeviceActivations(rows, width, code_group);
    ops::RowOptions options;
    options.policy = {4, code_group, false};
    of.tokens = rows;
    ops::cuda_check(cudaDeviceSynchronize(), "copies");
    if (fused) {
      ASSERT_TRUE(ops::kv4_decode_makes_codes(cache.layout, static_cast<int>(heads), options, of));
      ops::kv4_decode_attention(cache.layout, stored.data(), cache.sequences_view(), attention, workspace,
                                nullptr, {&rotation, stored.data(), nullptr, &of, options});
    } else {
      ops::rotate_heads_and_append(rotation, x.data(), stride, cache.layout, stored.data(),
                                   cache.sequences_view(), nullptr, nullptr);
      ops::kv4_decode_attention(cache.layout, stored.data(), cache.sequences_view(), attention, workspace,
                                nullptr);
      ops::quantize_rows(static_cast<const float*>(out.data()), width, options, of, nullptr);
    }
    ops::cuda_check(cudaDeviceSynchronize(), "KV4 attention");
    pages[fused].resize(before.size());
    stored.download(pages[fused].data(), before.size());
  }
  EXPECT_EQ(pages[0], pages[1]);
  EXPECT_NE(pages[0], before);
  const auto same = [](const auto& a, const auto& b) {
    auto first = std::vector<std::remove_cvref_t<decltype(*a.data())>>(a.size());
    auto second = first;
    a.download(first.data(), first.size());
    b.download(second.data(), second.size());
    return first == second;
  };
  EXPECT_TRUE(same(codes[0].codes, codes[1].codes));
  EXPECT_TRUE(same(codes[0].scale, codes[1].scale));
  EXPECT_TRUE(same(codes[0].zero, codes[1].zero));
}

TEST(Kv4, OneStepOfAShortSequence) {
  expect_same_step(128, 1, 4, {520}, 128, false);
}

TEST(Kv4, OneStepIsThatOfTheKernelsAlone) {
  expect_same_step(128, 2, 4, {1, 70, 333, 16}, 128, false);
  expect_same_step(64, 1, 2, {2300}, 128, false);
  expect_same_step(64, 1, 1, {4200}, 32, false);  // a cluster of wide CTAs
  expect_same_step(64, 3, 2, {129, 64, 1000}, 64, true);
  expect_same_step(64, 1, 1, {17}, 32, false);
  expect_same_step(256, 1, 8, {200, 1}, 128, false);
  expect_same_step(128, 8, 4, {1025}, 32, true);
}

TEST(Kv4, RefusesWhatItCannotDo) {
  ops::KvWorkspace workspace(1, 16, 96);
  const float* none = nullptr;
  EXPECT_THROW(ops::kv_append({1, 97}, nullptr, {1, 1, nullptr, nullptr}, none, none, 97, nullptr, nullptr),
               Error);
  EXPECT_THROW(ops::kv4_decode_attention({1, 128}, nullptr, {1, 1, nullptr, nullptr}, {.heads = 9}, workspace,
                                         nullptr),
               Error);
  EXPECT_THROW(
      ops::kv4_decode_attention({1, 96}, nullptr, {1, 1, nullptr, nullptr}, {.heads = 1}, workspace, nullptr),
      Error);
}

}  // namespace
}  // namespace quatrain
