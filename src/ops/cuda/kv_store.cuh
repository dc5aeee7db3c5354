// One warp writes a head's key or value of one token into a page: kv_append() of ops/kv_cache.h.
#pragma once

#include <cuda_fp16.h>

#include "ops/cuda/group_quantizer.cuh"
#include "ops/cuda/kv_pages.h"

namespace quatrain::ops {

/// kv_group() of ops/kv_cache.cpp: the scale is rounded to FP16 before the zero is formed, and goes up one
/// step where the zero would leave int16.
__device__ inline DeviceGroup kv_group_device(float low, float high, int bits, bool symmetric,
                                              bool force_zero) {
  constexpr float kLeastScale = 0x1p-24f;
  const DeviceGroup exact = quantize_group_device(low, high, bits, symmetric, force_zero);
  if (fmaxf(fabsf(low), fabsf(high)) == 0) return exact;
  if (force_zero) low = fminf(low, 0.0f);
  unsigned short half = __half_as_ushort(__float2half_rn(fmaxf(exact.scale, kLeastScale)));
  float scale = __half2float(__ushort_as_half(half));
  if (symmetric) return {scale, exact.zero};
  float zero = rintf(__fdiv_rn(-low, scale));
  if (fabsf(zero) > 32767.0f) {
    scale = __half2float(__ushort_as_half(++half));
    zero = rintf(__fdiv_rn(-low, scale));
  }
  return {scale, isfinite(scale) ? static_cast<int>(zero) : 0};
}

/// x [head_dim] is a key (which = 0) or a value (1); `head` points at the head's part of the page. Returns
/// whether every value that this lane saw was finite and fits.
template <typename T>
__device__ bool store_head(const DeviceKvLayout& layout, uint8_t* head, int which, int slot, const T* x,
                           int lane) {
  uint8_t* codes = head + which * layout.codes_bytes() + slot * layout.token_bytes();
  bool good = true;
  if (layout.bits == 16) {
    for (int k = 2 * lane; k < layout.head_dim; k += 64) {
      const __half2 pair = __floats2half2_rn(x[k], x[k + 1]);
      good = good && isfinite(__low2float(pair)) && isfinite(__high2float(pair));
      reinterpret_cast<__half2*>(codes)[k / 2] = pair;
    }
    return good;
  }
  const int width = layout.group_columns(), groups = layout.groups();
  auto* pairs =
      reinterpret_cast<uint32_t*>(head + 2 * layout.codes_bytes()) + (which * kKvPageTokens + slot) * groups;
  for (int g = 0; g < groups; ++g) {
    const int first = g * width, last = min(first + width, layout.head_dim);
    float low = INFINITY, high = -INFINITY;
    for (int k = first + 2 * lane; k < last; k += 64) {
      const float a = x[k], b = x[k + 1];
      good = good && isfinite(a) && isfinite(b);
      low = fminf(low, fminf(a, b));
      high = fmaxf(high, fmaxf(a, b));
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      low = fminf(low, __shfl_xor_sync(~0u, low, distance));
      high = fmaxf(high, __shfl_xor_sync(~0u, high, distance));
    }
    const DeviceGroup group = kv_group_device(low, high, layout.bits, layout.symmetric, width > 256);
    good = good && isfinite(group.scale);
    const float reciprocal = group_reciprocal(group.scale);
    for (int k = first + 2 * lane; k < last; k += 64) {
      const int a = quantize_value_device(x[k], group, reciprocal, layout.bits);
      const int b = quantize_value_device(x[k + 1], group, reciprocal, layout.bits);
      if (layout.bits == 4)
        codes[k / 2] = static_cast<uint8_t>(a | b << 4);
      else
        reinterpret_cast<uchar2*>(codes)[k / 2] =
            make_uchar2(static_cast<uint8_t>(a), static_cast<uint8_t>(b));
    }
    if (lane == 0)
      pairs[g] = __half_as_ushort(__float2half_rn(group.scale)) | static_cast<uint32_t>(group.zero & 0xFFFF)
                                                                      << 16;
  }
  return good;
}

/// The same of 4-bit codes with the head as group, whose columns kColumns * lane ... a lane holds. Leaves
/// codes, then scale and zero, in `copy` too.
template <int kColumns>
__device__ __forceinline__ bool store_columns(const DeviceKvLayout& layout, uint8_t* head, int which,
                                              int slot, const float (&x)[kColumns], int lane, uint8_t* copy) {
  constexpr int kBytes = kColumns / 2;
  float low = INFINITY, high = -INFINITY;
  bool good = true;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    good = good && isfinite(x[i]);
    low = fminf(low, x[i]);
    high = fmaxf(high, x[i]);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    low = fminf(low, __shfl_xor_sync(~0u, low, distance));
    high = fmaxf(high, __shfl_xor_sync(~0u, high, distance));
  }
  const DeviceGroup group = kv_group_device(low, high, 4, layout.symmetric, false);
  good = good && isfinite(group.scale);
  const float reciprocal = group_reciprocal(group.scale);
  uint8_t* to = head + which * layout.codes_bytes() + slot * (16 * kColumns) + kBytes * lane;
#pragma unroll
  for (int i = 0; i < kBytes; ++i) {
    const int a = quantize_value_device(x[2 * i], group, reciprocal, 4);
    const int b = quantize_value_device(x[2 * i + 1], group, reciprocal, 4);
    to[i] = copy[kBytes * lane + i] = static_cast<uint8_t>(a | b << 4);
  }
  if (lane == 0) {
    const uint32_t pair =
        __half_as_ushort(__float2half_rn(group.scale)) | static_cast<uint32_t>(group.zero & 0xFFFF) << 16;
    reinterpret_cast<uint32_t*>(head + 2 * layout.codes_bytes())[which * kKvPageTokens + slot] = pair;
    *reinterpret_cast<uint32_t*>(copy + 16 * kColumns) = pair;
  }
  return good;
}

}  // namespace quatrain::ops
