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

/// The keys of one head's page as FP32 [head_dim][64]: s (q - z). FP32 pages need no call.
inline void kv_widen_keys(const KvLayout& layout, const std::byte* head, float* out) {
  const auto* codes = reinterpret_cast<const uint8_t*>(head);
  const auto* scales = reinterpret_cast<const uint16_t*>(head + layout.key_scale);
  const auto* zeros = reinterpret_cast<const int16_t*>(head + layout.key_zero);
  for (int64_t g = 0; g < layout.groups; ++g) {
    const int64_t begin = g * layout.group;
    const int64_t end = begin + layout.group < layout.head_dim ? begin + layout.group : layout.head_dim;
    if (layout.bits == 8) {
      for (int64_t t = 0; t < kPageTokens; t += kLanes) {
        const Vec scale = load_f16(scales + g * kPageTokens + t),
                  bias = load_i16(zeros + g * kPageTokens + t);
        for (int64_t d = begin; d < end; ++d)
          store(out + d * kPageTokens + t, mul(sub(load_u8(codes + d * kPageTokens + t), bias), scale));
      }
      continue;
    }
    constexpr int64_t kHalf = kPageTokens / 2;
    for (int64_t t = 0; t < kHalf; t += kLanes) {
      const int64_t low = g * kPageTokens + t, high = low + kHalf;
      const Vec low_scale = load_f16(scales + low), low_zero = load_i16(zeros + low);
      const Vec high_scale = load_f16(scales + high), high_zero = load_i16(zeros + high);
      for (int64_t d = begin; d < end; ++d) {
        Vec a, b;
        load_nibbles(codes + d * kHalf + t, a, b);
        store(out + d * kPageTokens + t, mul(sub(a, low_zero), low_scale));
        store(out + d * kPageTokens + t + kHalf, mul(sub(b, high_zero), high_scale));
      }
    }
  }
}

/// The first `tokens` values of one head's page as FP32 [tokens][padded_dim]; the padding becomes some finite
/// value.
inline void kv_widen_values(const KvLayout& layout, const std::byte* head, int64_t tokens, float* out) {
  const int64_t row_bytes = layout.padded_dim * layout.bits / 8;
  const auto* codes = reinterpret_cast<const uint8_t*>(head + layout.values);
  const auto* scales = reinterpret_cast<const uint16_t*>(head + layout.value_scale);
  const auto* zeros = reinterpret_cast<const int16_t*>(head + layout.value_zero);
  float scale[kLanes], bias[kLanes];
  for (int64_t t = 0; t < tokens; ++t, codes += row_bytes, out += layout.padded_dim) {
    const auto affine = [&](Vec code, int64_t column) {
      const int64_t first = column < layout.head_dim ? column / layout.group : layout.groups - 1;
      if (layout.groups == 1 || layout.group % kLanes == 0) {
        const Vec z = broadcast(static_cast<float>(zeros[first]));
        return mul(sub(code, z), broadcast(half_to_float(scales[first])));
      }
      for (int i = 0; i < kLanes; ++i) {
        const int64_t g = column + i < layout.head_dim ? (column + i) / layout.group : layout.groups - 1;
        scale[i] = half_to_float(scales[g]);
        bias[i] = static_cast<float>(zeros[g]);
      }
      return mul(sub(code, load(bias)), load(scale));
    };
    for (int64_t chunk = 0; chunk < layout.padded_dim; chunk += 32) {
      if (layout.bits == 8) {
        for (int64_t c = chunk; c < chunk + 32; c += kLanes) store(out + c, affine(load_u8(codes + c), c));
      } else {
        for (int64_t c = 0; c < 16; c += kLanes) {
          Vec low, high;
          load_nibbles(codes + chunk / 2 + c, low, high);
          store(out + chunk + c, affine(low, chunk + c));
          store(out + chunk + c + 16, affine(high, chunk + c + 16));
        }
      }
    }
    scales += layout.groups;
    zeros += layout.groups;
  }
}

}  // namespace quatrain::ops::QUATRAIN_VEC_ISA
