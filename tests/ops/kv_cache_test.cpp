#include "ops/kv_cache.h"

#include <cmath>
#include <limits>

#include "base/buffer.h"
#include "base/error.h"
#include "base/half.h"
#include "each_isa.h"

namespace quatrain::ops {
namespace {

AlignedBuffer<std::byte> new_page(const KvLayout& layout) {
  AlignedBuffer<std::byte> page(layout.offset + layout.bytes());
  std::fill_n(page.data(), page.size(), std::byte{0});
  return page;
}

// What the format says a row of one group becomes.
std::vector<float> fake_quantized(const float* x, int64_t count, int64_t group, int bits, bool symmetric) {
  std::vector<float> out(static_cast<size_t>(count));
  for (int64_t begin = 0; begin < count; begin += group) {
    const int64_t width = std::min(group, count - begin);
    QuantizedGroup g = quantize_group(x + begin, width, bits, symmetric, group);
    g.scale = fp16_to_float(float_to_fp16(g.scale));
    float low = x[begin];
    for (int64_t i = begin; i < begin + width; ++i) low = std::min(low, x[i]);
    if (group > 256) low = std::min(low, 0.0f);
    if (!symmetric && g.zero != 0) g.zero = static_cast<int32_t>(std::rint(-low / g.scale));
    for (int64_t i = begin; i < begin + width; ++i)
      out[static_cast<size_t>(i)] = g.scale * static_cast<float>(quantize_value(x[i], g, bits) - g.zero);
  }
  return out;
}

TEST(KvCache, HoldsWhatTheFormatSays) {
  each_isa([] {
    for (const int bits : {4, 8, 16})
      for (const int64_t head_dim : {8, 20, 64, 80, 96, 128, 256, 320})
        for (const int64_t group : {int64_t{0}, int64_t{16}, int64_t{24}, int64_t{64}})
          for (const bool symmetric : {false, true}) {
            KvLayout layout = kv_layout(3, head_dim, bits, group, symmetric);
            layout.offset = 64;
            auto page = new_page(layout);
            const int64_t width = 3 * head_dim, stride = 2 * width + 7, tokens = 64;
            const auto rows = random_values(tokens * stride, 9);
            // Two writes that share bytes of 4-bit pages, not in slot order.
            for (int64_t head = 0; head < 3; ++head)
              for (const auto& [slot, count] : {std::pair<int64_t, int64_t>{40, 24}, {0, 1}, {1, 39}}) {
                const float* key = rows.data() + slot * stride + head * head_dim;
                ASSERT_TRUE(kv_append(layout, page.data(), head, slot, count, key, key + width, stride));
              }
            std::vector<float> key(static_cast<size_t>(head_dim)), value(static_cast<size_t>(head_dim));
            for (int64_t t = 0; t < tokens; ++t)
              for (int64_t head = 0; head < 3; ++head) {
                kv_read(layout, page.data(), head, t, key.data(), value.data());
                const float* from = rows.data() + t * stride + head * head_dim;
                const int64_t wide = group == 0 ? head_dim : std::min(group, head_dim);
                if (bits == 16) {
                  ASSERT_EQ(key, std::vector<float>(from, from + head_dim));
                  ASSERT_EQ(value, std::vector<float>(from + width, from + width + head_dim));
                } else {
                  ASSERT_EQ(key, fake_quantized(from, head_dim, wide, bits, symmetric))
                      << bits << " " << head_dim;
                  ASSERT_EQ(value, fake_quantized(from + width, head_dim, wide, bits, symmetric));
                }
              }
          }
  });
}

TEST(KvCache, ScalesAreFp16AndZerosFitInt16) {
  for (const int bits : {4, 8})
    for (const bool symmetric : {false, true})
      for (const float magnitude : {0.0f, 1e-38f, 1e-9f, 6e-8f, 1e-3f, 1.0f, 777.0f, 60000.0f, 600000.0f})
        for (const float spread : {0.0f, 1e-6f, 1e-3f, 1.0f, 2.0f})
          for (const float sign : {1.0f, -1.0f}) {
            const float a = sign * magnitude, b = sign * (magnitude - spread * magnitude);
            const QuantizedGroup group = kv_group(std::min(a, b), std::max(a, b), bits, symmetric, 64);
            ASSERT_TRUE(std::isfinite(group.scale) || magnitude / 127 > 65504 ||
                        (bits == 4 && magnitude > 65504));
            if (!std::isfinite(group.scale)) continue;
            ASSERT_EQ(group.scale, fp16_to_float(float_to_fp16(group.scale)));
            ASSERT_LE(std::abs(group.zero), 32767);
            // Right to half a step, one more where the zero's rounding cuts, and by what a scale rounded down
            // to FP16 (coarse below 2^-14) leaves uncovered of the range.
            const float steps = static_cast<float>(symmetric ? (1 << (bits - 1)) - 1 : (1 << bits) - 1);
            const float range = symmetric ? magnitude : std::fabs(a - b);
            const float bound = 1.5f * group.scale + std::max(0.0f, range - steps * group.scale);
            for (const float x : {a, b}) {
              const float back =
                  group.scale * static_cast<float>(quantize_value(x, group, bits) - group.zero);
              ASSERT_NEAR(back, x, bound) << magnitude << " " << spread << " bits " << bits;
            }
          }
}

TEST(KvCache, ReportsWhatCannotBeStored) {
  each_isa([] {
    for (const int bits : {4, 8, 16})
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY})
        for (const int64_t at : {0, 30, 36}) {
          const KvLayout layout = kv_layout(1, 37, bits, 0, false);
          auto page = new_page(layout);
          std::vector<float> key(37, 0.5f), value(37, 0.25f);
          EXPECT_TRUE(kv_append(layout, page.data(), 0, 3, 1, key.data(), value.data(), 37));
          value[static_cast<size_t>(at)] = bad;
          EXPECT_FALSE(kv_append(layout, page.data(), 0, 3, 1, key.data(), value.data(), 37));
          EXPECT_FALSE(kv_append(layout, page.data(), 0, 3, 1, value.data(), key.data(), 37));
        }
    const KvLayout layout = kv_layout(1, 16, 4, 0, false);
    auto page = new_page(layout);
    std::vector<float> huge(16, 1.0f);
    huge[0] = 1e9f;
    EXPECT_FALSE(kv_append(layout, page.data(), 0, 0, 1, huge.data(), huge.data(), 16));
  });
}

TEST(KvCache, RefusesBadLayouts) {
  EXPECT_THROW(kv_layout(1, 64, 5, 0, false), Error);
  EXPECT_THROW(kv_layout(1, 64, 4, -1, false), Error);
  EXPECT_THROW(kv_layout(0, 64, 4, 0, false), Error);
  EXPECT_THROW(kv_layout(1, 0, 4, 0, false), Error);
  EXPECT_THROW(kv_layout(1, 100000, 4, 0, false), Error);
}

}  // namespace
}  // namespace quatrain::ops
