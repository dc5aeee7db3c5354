#include "ops/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/buffer.h"
#include "base/error.h"
#include "base/half.h"
#include "ops/cpu/kv_cache.h"
#include "ops/cpu/select.h"

namespace quatrain::ops {
namespace {

constexpr float kLeastScale = 0x1p-24f;  // the smallest FP16 above zero
constexpr int64_t kMostHeadDim = 1024;

size_t aligned(size_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

uint8_t nibble(const uint8_t* byte, bool high) {
  return high ? *byte >> 4 : *byte & 15;
}

void set_nibble(uint8_t* byte, bool high, uint8_t code) {
  *byte = static_cast<uint8_t>(high ? (*byte & 15) | code << 4 : (*byte & 0xF0) | code);
}

// Byte and half of a value's column in a row of 4-bit values.
int64_t value_byte(int64_t column) {
  return column / 32 * 16 + column % 16;
}
bool value_high(int64_t column) {
  return column % 32 >= 16;
}

float zero_of(float low, float scale, int bits, bool symmetric) {
  return symmetric ? static_cast<float>(1 << (bits - 1)) : std::rint(-low / scale);
}

}  // namespace

KvLayout kv_layout(int64_t kv_heads, int64_t head_dim, int bits, int64_t group, bool symmetric) {
  require(kv_heads > 0 && head_dim > 0 && head_dim <= kMostHeadDim,
          "a KV cache of {} heads of {} values: heads of 1 to {} values can be cached", kv_heads, head_dim,
          kMostHeadDim);
  require(bits == 4 || bits == 8 || bits == 16, "KV bits: {} is not 4, 8 or 16", bits);
  require(group >= 0, "KV group: {} is negative", group);
  KvLayout layout;
  layout.kv_heads = kv_heads;
  layout.head_dim = head_dim;
  layout.padded_dim = (head_dim + 31) / 32 * 32;
  layout.bits = bits;
  layout.group = group == 0 ? head_dim : std::min(group, head_dim);
  layout.groups = (head_dim + layout.group - 1) / layout.group;
  layout.symmetric = symmetric;
  const size_t value_bits = bits == 16 ? 32 : static_cast<size_t>(bits);
  layout.values = aligned(static_cast<size_t>(head_dim * kPageTokens) * value_bits / 8);
  layout.key_scale =
      layout.values + aligned(static_cast<size_t>(layout.padded_dim * kPageTokens) * value_bits / 8);
  const size_t table = bits == 16 ? 0 : aligned(static_cast<size_t>(layout.groups * kPageTokens) * 2);
  layout.key_zero = layout.key_scale + table;
  layout.value_scale = layout.key_zero + table;
  layout.value_zero = layout.value_scale + table;
  layout.head_bytes = layout.value_zero + table;
  return layout;
}

QuantizedGroup kv_group(float low, float high, int bits, bool symmetric, int64_t group) {
  const float extremes[2] = {low, high};
  const QuantizedGroup exact = quantize_group(extremes, 2, bits, symmetric, group);
  if (low == 0 && high == 0) return exact;
  uint16_t half = float_to_fp16(std::max(exact.scale, kLeastScale));
  if (group > 256) low = std::min(low, 0.0f);
  float zero = zero_of(low, fp16_to_float(half), bits, symmetric);
  if (std::fabs(zero) > 32767.0f) zero = zero_of(low, fp16_to_float(++half), bits, symmetric);
  const float scale = fp16_to_float(half);
  return {scale, std::isfinite(scale) ? static_cast<int32_t>(zero) : 0};
}

bool kv_append(const KvLayout& layout, std::byte* page, int64_t head, int64_t slot, int64_t count,
               const float* key, const float* value, int64_t stride) {
  const KvKernel& kernel =
      select_kernel(active_isa(), kv_cache_kernel_generic, kv_cache_kernel_avx2, kv_cache_kernel_avx512);
  std::byte* part = page + layout.offset + static_cast<size_t>(head) * layout.head_bytes;
  uint8_t codes[kMostHeadDim + kCodePadding];

  // Quantises one row into `codes`, group by group; group g's scale and zero go to index g * step.
  const auto quantise = [&](const float* x, uint16_t* scales, int16_t* zeros, int64_t step) {
    for (int64_t g = 0; g < layout.groups; ++g) {
      const int64_t begin = g * layout.group, width = std::min(layout.group, layout.head_dim - begin);
      float low = 0, high = 0;
      if (!kernel.extremes(x + begin, width, low, high)) return false;
      const QuantizedGroup group = kv_group(low, high, layout.bits, layout.symmetric, layout.group);
      if (!std::isfinite(group.scale)) return false;
      kernel.encode(x + begin, width, group, layout.bits, codes + begin);
      scales[g * step] = float_to_fp16(group.scale);
      zeros[g * step] = static_cast<int16_t>(group.zero);
    }
    return true;
  };

  auto* key_codes = reinterpret_cast<uint8_t*>(part);
  auto* value_codes = reinterpret_cast<uint8_t*>(part + layout.values);
  for (int64_t t = slot; t < slot + count; ++t, key += stride, value += stride) {
    if (layout.bits == 16) {
      float low, high;
      if (!kernel.extremes(key, layout.head_dim, low, high) ||
          !kernel.extremes(value, layout.head_dim, low, high))
        return false;
      auto* keys = reinterpret_cast<float*>(part);
      for (int64_t d = 0; d < layout.head_dim; ++d) keys[d * kPageTokens + t] = key[d];
      std::copy_n(value, layout.head_dim,
                  reinterpret_cast<float*>(part + layout.values) + t * layout.padded_dim);
      continue;
    }
    if (!quantise(key, reinterpret_cast<uint16_t*>(part + layout.key_scale) + t,
                  reinterpret_cast<int16_t*>(part + layout.key_zero) + t, kPageTokens))
      return false;
    for (int64_t d = 0; d < layout.head_dim; ++d) {
      if (layout.bits == 8)
        key_codes[d * kPageTokens + t] = codes[d];
      else
        set_nibble(key_codes + d * kPageTokens / 2 + t % 32, t >= 32, codes[d]);
    }
    if (!quantise(value, reinterpret_cast<uint16_t*>(part + layout.value_scale) + t * layout.groups,
                  reinterpret_cast<int16_t*>(part + layout.value_zero) + t * layout.groups, 1))
      return false;
    uint8_t* row = value_codes + t * layout.padded_dim * layout.bits / 8;
    for (int64_t d = 0; d < layout.head_dim; ++d) {
      if (layout.bits == 8)
        row[d] = codes[d];
      else
        set_nibble(row + value_byte(d), value_high(d), codes[d]);
    }
  }
  return true;
}

void kv_read(const KvLayout& layout, const std::byte* page, int64_t head, int64_t slot, float* key,
             float* value) {
  const std::byte* part = page + layout.offset + static_cast<size_t>(head) * layout.head_bytes;
  const auto* key_codes = reinterpret_cast<const uint8_t*>(part);
  const auto* row =
      reinterpret_cast<const uint8_t*>(part + layout.values) + slot * layout.padded_dim * layout.bits / 8;
  const auto* key_scale = reinterpret_cast<const uint16_t*>(part + layout.key_scale);
  const auto* key_zero = reinterpret_cast<const int16_t*>(part + layout.key_zero);
  const auto* value_scale = reinterpret_cast<const uint16_t*>(part + layout.value_scale);
  const auto* value_zero = reinterpret_cast<const int16_t*>(part + layout.value_zero);
  for (int64_t d = 0; d < layout.head_dim; ++d) {
    if (layout.bits == 16) {
      key[d] = reinterpret_cast<const float*>(part)[d * kPageTokens + slot];
      value[d] = reinterpret_cast<const float*>(part + layout.values)[slot * layout.padded_dim + d];
      continue;
    }
    const int64_t g = d / layout.group;
    const bool bytes = layout.bits == 8;
    const int k = bytes ? key_codes[d * kPageTokens + slot]
                        : nibble(key_codes + d * kPageTokens / 2 + slot % 32, slot >= 32);
    const int v = bytes ? row[d] : nibble(row + value_byte(d), value_high(d));
    key[d] = fp16_to_float(key_scale[g * kPageTokens + slot]) *
             static_cast<float>(k - key_zero[g * kPageTokens + slot]);
    value[d] = fp16_to_float(value_scale[slot * layout.groups + g]) *
               static_cast<float>(v - value_zero[slot * layout.groups + g]);
  }
}

}  // namespace quatrain::ops
