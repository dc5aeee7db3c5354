// What each instruction set gives to kv_cache.cpp and attention.
#pragma once

#include <cstdint>

#include "ops/kv_cache.h"

namespace quatrain::ops {

inline constexpr int64_t kCodePadding = 16;  // bytes past a row of codes that encode() may overwrite

struct KvKernel {
  /// The extremes of x; false when one is NaN or infinite.
  bool (*extremes)(const float* x, int64_t count, float& low, float& high);
  /// q = clamp(rint(x / s) + z, 0, 2^bits - 1), a byte each; up to kCodePadding bytes past the end are
  /// touched.
  void (*encode)(const float* x, int64_t count, QuantizedGroup group, int bits, uint8_t* codes);
  /// Four rows of codes, `stride` bytes apart, as the words of a page's values, padded_dim columns of them.
  void (*join)(const uint8_t* codes, int64_t stride, int64_t columns, int bits, uint8_t* to);
};

extern const KvKernel kv_cache_kernel_generic, kv_cache_kernel_avx2, kv_cache_kernel_avx512;

}  // namespace quatrain::ops
