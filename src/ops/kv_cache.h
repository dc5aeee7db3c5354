// Pages of the KV cache: where 64 tokens' keys and values of one layer lie, and how they are written.
//
// One layer's part of a page holds, head after head:
//   keys    [key_dim / 4][64 tokens][4 columns]     head_dim rounded up to 4
//   values  [64 / 4 tokens][padded_dim][4 tokens]   head_dim rounded up to 32
//   scales (FP16) and zeros (int16) of the keys and of the values, each [groups][64 tokens]
// so that four codes of a sum lie in one 32-bit word, as integer dot products want them, and sums of many
// tokens (or columns) form without sums across a vector. 8-bit codes take a byte; 4-bit ones of a word and of
// the word 16 further on (token t and t + 16, column c and c + 16; t, c mod 32 below 16) share four bytes,
// the former low. Unquantised pages hold FP32 keys [head_dim][64 tokens], values [64 tokens][padded_dim] and
// no scales.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/number_format.h"

namespace quatrain::ops {

inline constexpr int64_t kPageTokens = 64;

struct KvLayout {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t key_dim = 0;
  int64_t padded_dim = 0;
  int bits = 16;      // 4, 8, or 16: unquantised, in FP32
  int64_t group = 0;  // columns that share a scale
  int64_t groups = 0;
  bool symmetric = false;
  size_t values = 0, key_scale = 0, key_zero = 0, value_scale = 0,
         value_zero = 0;  // bytes from a head's start
  size_t head_bytes = 0;
  size_t offset = 0;  // of this layer's part from the start of a page that holds several layers

  /// Bytes of one layer's part of a page.
  size_t bytes() const { return head_bytes * static_cast<size_t>(kv_heads); }
};

/// Where the code of a key's column d at slot t lies: byte and, for 4 bits, whether in its high half.
struct KvPlace {
  int64_t byte;
  bool high;
};
inline KvPlace kv_key_place(const KvLayout& layout, int64_t d, int64_t t) {
  if (layout.bits == 8) return {(d / 4 * kPageTokens + t) * 4 + d % 4, false};
  return {d / 4 * kPageTokens * 2 + t / 32 * 64 + t % 16 * 4 + d % 4, t % 32 >= 16};
}
/// The same of a value, from the start of the values.
inline KvPlace kv_value_place(const KvLayout& layout, int64_t d, int64_t t) {
  if (layout.bits == 8) return {(t / 4 * layout.padded_dim + d) * 4 + t % 4, false};
  return {t / 4 * layout.padded_dim * 2 + d / 32 * 64 + d % 16 * 4 + t % 4, d % 32 >= 16};
}

/// Throws unless bits is 4, 8 or 16 and 0 <= group; group 0 is the whole head.
KvLayout kv_layout(int64_t kv_heads, int64_t head_dim, int bits, int64_t group, bool symmetric);

/// Scale and zero of a KV group with extremes low and high: quantize_group() of base/number_format.h with the
/// scale rounded to FP16 (at least 2^-24, and up where the zero would leave int16) before the zero is formed.
/// The scale is infinite when it does not fit FP16.
QuantizedGroup kv_group(float low, float high, int bits, bool symmetric, int64_t group);

/// Quantises and stores `count` tokens of one head at slots [slot, slot + count) of `page`.
/// key and value point at the head's values of the first token; tokens are `stride` floats apart. Returns
/// false when a value is NaN or infinite, or too large for an FP16 scale; the page then holds no valid data
/// in those slots. Slots share bytes: one thread at a time writes a (page, head).
bool kv_append(const KvLayout& layout, std::byte* page, int64_t head, int64_t slot, int64_t count,
               const float* key, const float* value, int64_t stride);

/// One token's key and value of a head as FP32 [head_dim], for checks and small reads.
void kv_read(const KvLayout& layout, const std::byte* page, int64_t head, int64_t slot, float* key,
             float* value);

}  // namespace quatrain::ops
