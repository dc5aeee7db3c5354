#include "ops/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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

uint8_t code_at(const uint8_t* codes, KvPlace place, int bits) {
  if (bits == 8) return codes[place.byte];
  return place.high ? codes[place.byte] >> 4 : codes[place.byte] & 15;
}

// Tokens of which each shares the bytes of its keys' 4-bit codes with one other.
constexpr int64_t kBlockTokens = 32;

// Rows of codes, a byte each, of the tokens of a block from slot `first` on.
struct CodeRows {
  const uint8_t* codes;
  int64_t stride;
  int64_t first, count;

  const uint8_t* at(int64_t slot) const {
    return slot >= first && slot < first + count ? codes + (slot - first) * stride : nullptr;
  }
};

uint32_t word_at(const uint8_t* at) {
  uint32_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// Words of four codes of the tokens that share bytes; a token that is not written (null) keeps its halves.
void store_key_words(const uint8_t* low, const uint8_t* high, int64_t dim, int64_t step, uint8_t* to) {
  const uint32_t kept = (low != nullptr ? 0 : 0x0F0F0F0F) | (high != nullptr ? 0 : 0xF0F0F0F0);
  for (int64_t d = 0; d < dim; d += 4, to += step) {
    const uint32_t word = (low != nullptr ? word_at(low + d) : 0) |
                          (high != nullptr ? word_at(high + d) << 4 : 0) | (word_at(to) & kept);
    std::memcpy(to, &word, sizeof word);
  }
}

void store_keys(const KvLayout& layout, const CodeRows& rows, uint8_t* page) {
  const int64_t step = kPageTokens * layout.bits / 2;  // from one four columns to the next
  if (layout.bits == 8) {
    for (int64_t t = rows.first; t < rows.first + rows.count; ++t) {
      uint8_t* to = page + kv_key_place(layout, 0, t).byte;
      for (int64_t d = 0; d < layout.key_dim; d += 4, to += step) std::memcpy(to, rows.at(t) + d, 4);
    }
    return;
  }
  constexpr int64_t kHalf = kBlockTokens / 2;
  const int64_t base = rows.first / kBlockTokens * kBlockTokens;
  for (int64_t t = base; t < base + kHalf; ++t) {
    const uint8_t *low = rows.at(t), *high = rows.at(t + kHalf);
    uint8_t* to = page + kv_key_place(layout, 0, t).byte;
    if (low != nullptr || high != nullptr) store_key_words(low, high, layout.key_dim, step, to);
  }
}

void store_value(const KvLayout& layout, const uint8_t* codes, int64_t t, uint8_t* page) {
  uint8_t* to = page + kv_value_place(layout, 0, t).byte;
  if (layout.bits == 8) {
    for (int64_t d = 0; d < layout.padded_dim; ++d) to[4 * d] = codes[d];
    return;
  }
  for (int64_t d = 0; d < layout.padded_dim; d += 32, to += 64)  // columns d + r and d + 16 + r share a byte
    for (int64_t r = 0; r < 16; ++r) to[4 * r] = static_cast<uint8_t>(codes[d + r] | codes[d + 16 + r] << 4);
}

void store_values(const KvLayout& layout, const KvKernel& kernel, const CodeRows& rows, uint8_t* page) {
  constexpr int64_t kTokens = 4;  // of a word
  const int64_t end = rows.first + rows.count;
  for (int64_t t = rows.first; t < end;) {
    if (t % kTokens == 0 && t + kTokens <= end) {
      kernel.join(rows.at(t), rows.stride, layout.padded_dim, layout.bits,
                  page + kv_value_place(layout, 0, t).byte);
      t += kTokens;
    } else {
      store_value(layout, rows.at(t), t, page);
      ++t;
    }
  }
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
  layout.key_dim = (head_dim + 3) / 4 * 4;
  layout.padded_dim = (head_dim + 31) / 32 * 32;
  layout.bits = bits;
  layout.group = group == 0 ? head_dim : std::min(group, head_dim);
  layout.groups = (head_dim + layout.group - 1) / layout.group;
  layout.symmetric = symmetric;
  const size_t value_bits = bits == 16 ? 32 : static_cast<size_t>(bits);
  layout.values = aligned(static_cast<size_t>(layout.key_dim * kPageTokens) * value_bits / 8);
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

namespace {

// Quantises the rows of a block into `codes`, group by group; scales and zeros go to the tables of their
// slots.
bool quantise_rows(const KvLayout& layout, const KvKernel& kernel, const float* x, int64_t x_stride,
                   const CodeRows& rows, uint16_t* scales, int16_t* zeros, uint8_t* codes) {
  for (int64_t t = rows.first; t < rows.first + rows.count; ++t, x += x_stride, codes += rows.stride) {
    for (int64_t g = 0; g < layout.groups; ++g) {
      const int64_t begin = g * layout.group, width = std::min(layout.group, layout.head_dim - begin);
      float low = 0, high = 0;
      if (!kernel.extremes(x + begin, width, low, high)) return false;
      const QuantizedGroup group = kv_group(low, high, layout.bits, layout.symmetric, layout.group);
      if (!std::isfinite(group.scale)) return false;
      kernel.encode(x + begin, width, group, layout.bits, codes + begin);
      scales[g * kPageTokens + t] = float_to_fp16(group.scale);
      zeros[g * kPageTokens + t] = static_cast<int16_t>(group.zero);
    }
    // A key's last word and a value's padding hold zeros.
    std::fill(codes + layout.head_dim, codes + layout.padded_dim, uint8_t{0});
  }
  return true;
}

bool append_exact(const KvLayout& layout, const KvKernel& kernel, std::byte* part, int64_t slot,
                  int64_t count, const float* key, const float* value, int64_t stride) {
  auto* keys = reinterpret_cast<float*>(part);
  auto* values = reinterpret_cast<float*>(part + layout.values);
  for (int64_t t = slot; t < slot + count; ++t, key += stride, value += stride) {
    float low, high;
    if (!kernel.extremes(key, layout.head_dim, low, high) ||
        !kernel.extremes(value, layout.head_dim, low, high))
      return false;
    for (int64_t d = 0; d < layout.head_dim; ++d) keys[d * kPageTokens + t] = key[d];
    std::copy_n(value, layout.head_dim, values + t * layout.padded_dim);
  }
  return true;
}

}  // namespace

bool kv_append(const KvLayout& layout, std::byte* page, int64_t head, int64_t slot, int64_t count,
               const float* key, const float* value, int64_t stride) {
  const KvKernel& kernel =
      select_kernel(active_isa(), kv_cache_kernel_generic, kv_cache_kernel_avx2, kv_cache_kernel_avx512);
  std::byte* part = page + layout.offset + static_cast<size_t>(head) * layout.head_bytes;
  if (layout.bits == 16) return append_exact(layout, kernel, part, slot, count, key, value, stride);

  static thread_local AlignedBuffer<uint8_t> codes;
  const int64_t row = layout.padded_dim + kCodePadding;
  codes.resize(static_cast<size_t>(kBlockTokens * row));
  const auto scales = [&](size_t table) { return reinterpret_cast<uint16_t*>(part + table); };
  const auto zeros = [&](size_t table) { return reinterpret_cast<int16_t*>(part + table); };
  auto* page_codes = reinterpret_cast<uint8_t*>(part);
  const int64_t end = slot + count;
  for (int64_t first = slot; first < end;) {
    const int64_t last = std::min(end, (first / kBlockTokens + 1) * kBlockTokens);
    const CodeRows rows{codes.data(), row, first, last - first};
    if (!quantise_rows(layout, kernel, key + (first - slot) * stride, stride, rows, scales(layout.key_scale),
                       zeros(layout.key_zero), codes.data()))
      return false;
    store_keys(layout, rows, page_codes);
    if (!quantise_rows(layout, kernel, value + (first - slot) * stride, stride, rows,
                       scales(layout.value_scale), zeros(layout.value_zero), codes.data()))
      return false;
    store_values(layout, kernel, rows, page_codes + layout.values);
    first = last;
  }
  return true;
}

void kv_read(const KvLayout& layout, const std::byte* page, int64_t head, int64_t slot, float* key,
             float* value) {
  const std::byte* part = page + layout.offset + static_cast<size_t>(head) * layout.head_bytes;
  const auto* key_codes = reinterpret_cast<const uint8_t*>(part);
  const auto* value_codes = reinterpret_cast<const uint8_t*>(part + layout.values);
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
    const int64_t at = d / layout.group * kPageTokens + slot;
    const int k = code_at(key_codes, kv_key_place(layout, d, slot), layout.bits);
    const int v = code_at(value_codes, kv_value_place(layout, d, slot), layout.bits);
    key[d] = fp16_to_float(key_scale[at]) * static_cast<float>(k - key_zero[at]);
    value[d] = fp16_to_float(value_scale[at]) * static_cast<float>(v - value_zero[at]);
  }
}

}  // namespace quatrain::ops
