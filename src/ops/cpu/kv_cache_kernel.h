// Quantising a row of keys or values, and widening a page of them, over cpu/vec.h.
#pragma once

#include "ops/cpu/kv_cache.h"
#include "ops/cpu/vec.h"

namespace quatrain::ops::QUATRAIN_VEC_ISA {

inline bool kv_extremes(const float* x, int64_t count, float& low, float& high) {
  Vec lowest = broadcast(x[0]), highest = lowest, difference = zero();
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vec value = load(x + i);
    lowest = min(lowest, value);
    highest = max(highest, value);
    difference = add(difference, sub(value, value));  // 0, or NaN for NaN and infinity
  }
  low = -max_lane(sub(zero(), lowest));
  high = max_lane(highest);
  float rest = 0;
  for (; i < count; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
    rest += x[i] - x[i];
  }
  return sum_lanes(difference) + rest == 0;
}

inline void kv_encode(const float* x, int64_t count, QuantizedGroup group, int bits, uint8_t* codes) {
  const Vec scale = broadcast(group.scale);
  const int top = (1 << bits) - 1;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store_codes(codes + i, div(load(x + i), scale), group.zero, top);
  if (i < count) store_codes(codes + i, div(load_first(x + i, count - i), scale), group.zero, top);
}

// The loops over 16 columns are for the compiler to make vectors of.
inline void kv_join(const uint8_t* codes, int64_t stride, int64_t columns, int bits, uint8_t* to) {
  const uint8_t *a = codes, *b = a + stride, *c = b + stride, *d = c + stride;
  uint32_t words[16];
  const int64_t step = bits == 8 ? 16 : 32;
  for (int64_t i = 0; i < columns; i += step, to += sizeof words) {
    if (bits == 8)
      for (int64_t r = i; r < i + 16; ++r)
        words[r - i] = uint32_t{a[r]} | uint32_t{b[r]} << 8 | uint32_t{c[r]} << 16 | uint32_t{d[r]} << 24;
    else
      for (int64_t r = i; r < i + 16; ++r) {
        const uint32_t low =
            uint32_t{a[r]} | uint32_t{b[r]} << 8 | uint32_t{c[r]} << 16 | uint32_t{d[r]} << 24;
        const uint32_t high = uint32_t{a[r + 16]} | uint32_t{b[r + 16]} << 8 | uint32_t{c[r + 16]} << 16 |
                              uint32_t{d[r + 16]} << 24;
        words[r - i] = low | high << 4;
      }
    std::memcpy(to, words, sizeof words);
  }
}

/// The codes of kLanes words of 4-bit or 8-bit codes at slot or column `at`, number j of each word.
inline Vec kv_codes(const uint8_t* words, int bits, int64_t at, int j) {
  if (bits == 8) return load_packed(words + at * 4, 8 * j, 255);
  return load_packed(words + at / 32 * 64 + at % 16 * 4, 8 * j + (at % 32 >= 16 ? 4 : 0), 15);
}

/// The keys of one head's page as FP32 [head_dim][64]: s (q - z). FP32 pages need no call.
inline void kv_widen_keys(const KvLayout& layout, const std::byte* head, float* out) {
  const auto* words = reinterpret_cast<const uint8_t*>(head);
  const auto* scales = reinterpret_cast<const uint16_t*>(head + layout.key_scale);
  const auto* zeros = reinterpret_cast<const int16_t*>(head + layout.key_zero);
  for (int64_t d = 0; d < layout.head_dim; ++d) {
    const int64_t table = d / layout.group * kPageTokens;
    const uint8_t* row = words + d / 4 * kPageTokens * 4 * layout.bits / 8;
    for (int64_t t = 0; t < kPageTokens; t += kLanes) {
      const Vec code = kv_codes(row, layout.bits, t, static_cast<int>(d % 4));
      store(out + d * kPageTokens + t,
            mul(sub(code, load_i16(zeros + table + t)), load_f16(scales + table + t)));
    }
  }
}

/// The first `tokens` values of one head's page as FP32 [tokens][padded_dim]; the padding becomes some finite
/// value.
inline void kv_widen_values(const KvLayout& layout, const std::byte* head, int64_t tokens, float* out) {
  const auto* words = reinterpret_cast<const uint8_t*>(head + layout.values);
  const auto* scales = reinterpret_cast<const uint16_t*>(head + layout.value_scale);
  const auto* zeros = reinterpret_cast<const int16_t*>(head + layout.value_zero);
  const bool uniform = layout.groups == 1 || layout.group % kLanes == 0;  // one group a vector
  for (int64_t t = 0; t < tokens; ++t, out += layout.padded_dim) {
    const uint8_t* row = words + t / 4 * layout.padded_dim * 4 * layout.bits / 8;
    for (int64_t c = 0; c < layout.padded_dim; c += kLanes) {
      const Vec code = kv_codes(row, layout.bits, c, static_cast<int>(t % 4));
      float scale[kLanes], bias[kLanes];
      for (int i = 0; i < (uniform ? 1 : kLanes); ++i) {
        const int64_t g = c + i < layout.head_dim ? (c + i) / layout.group : layout.groups - 1;
        scale[i] = half_to_float(scales[g * kPageTokens + t]);
        bias[i] = static_cast<float>(zeros[g * kPageTokens + t]);
      }
      store(out + c, uniform ? mul(sub(code, broadcast(bias[0])), broadcast(scale[0]))
                             : mul(sub(code, load(bias)), load(scale)));
    }
  }
}

}  // namespace quatrain::ops::QUATRAIN_VEC_ISA
