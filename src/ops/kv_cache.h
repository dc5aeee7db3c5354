// Pages of the KV cache: where 64 tokens' keys and values of one layer lie, and how they are written.
//
// One layer's part of a page holds, head after head:
//   keys   [head_dim][64 tokens]       so that scores of many tokens form without sums across a vector
//   values [64 tokens][padded_dim]     head_dim rounded up to 32, the padding zero
//   scales (FP16) and zeros (int16) of the keys [groups][64 tokens] and of the values [64 tokens][groups]
// 8-bit codes take a byte. 4-bit keys: byte t of a row holds token t low and token t + 32 high; 4-bit values:
// of each 32 columns, byte c holds column c low and c + 16 high. Unquantised pages hold FP32 and no scales.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/number_format.h"

namespace quatrain::ops {

inline constexpr int64_t kPageTokens = 64;

struct KvLayout {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
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

/// Throws unless bits is 4, 8 or 16 and 0 <= group; group 0 is the whole head.
KvLayout kv_layout(int64_t kv_heads, int64_t head_dim, int bits, int64_t group, bool symmetric);

/// Scale and zero of a KV group with extremes low and high: quantize_group() of base/number_format.h with the
/// scale rounded to FP16 (at least 2^-24, and up where the zero would leave int16) before the zero is formed.
/// The scale is infinite when it does not fit FP16.
QuantizedGroup kv_group(float low, float high, int bits, bool symmetric, int64_t group);

/// Quantises and stores `count` tokens of one head at slots [slot, slot + count) of `page`.
/// key and value point at the head's values of the first token; tokens are `stride` floats apart. Returns
/// false when a value is NaN or infinite, or too large for an FP16 scale; the page then holds no valid data
/// in those slots. Slots t and t + 32 share bytes: one thread at a time writes a (page, head).
bool kv_append(const KvLayout& layout, std::byte* page, int64_t head, int64_t slot, int64_t count,
               const float* key, const float* value, int64_t stride);

/// One token's key and value of a head as FP32 [head_dim], for checks and small reads.
void kv_read(const KvLayout& layout, const std::byte* page, int64_t head, int64_t slot, float* key,
             float* value);

}  // namespace quatrain::ops
