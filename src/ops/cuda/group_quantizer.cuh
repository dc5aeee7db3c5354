// quantize_group() and quantize_value() of base/number_format.h on the GPU: the same IEEE operations, so that
// identical FP32 input gives identical scales, zeros and codes.
#pragma once

#include <cfloat>

namespace quatrain::ops {

struct DeviceGroup {
  float scale;
  int zero;
};

/// 1 / scale for quantize_value_device; NaN, which sends every value to the division, where it would be
/// denormal.
__device__ __forceinline__ float group_reciprocal(float scale) {
  return scale < 1e37f ? __frcp_rn(scale) : __int_as_float(0x7FC00000);
}

/// From the group's extremes; `force_zero` for groups wider than 256.
__device__ __forceinline__ DeviceGroup quantize_group_device(float low, float high, int bits, bool symmetric,
                                                             bool force_zero) {
  const float magnitude = fmaxf(fabsf(low), fabsf(high));
  if (magnitude == 0) return {1.0f, 0};
  const float floor = fmaxf(__fdiv_rn(magnitude, 32767.0f), FLT_MIN);
  if (symmetric) {
    const int levels = (1 << (bits - 1)) - 1;
    return {fmaxf(__fdiv_rn(magnitude, static_cast<float>(levels)), floor), levels + 1};
  }
  if (force_zero) {
    low = fminf(low, 0.0f);
    high = fmaxf(high, 0.0f);
  }
  const float scale = fmaxf(__fdiv_rn(__fsub_rn(high, low), static_cast<float>((1 << bits) - 1)), floor);
  return {scale, __float2int_rn(__fdiv_rn(-low, scale))};
}

/// rint(x / scale) + zero, clamped. x * reciprocal is within 4e-7 of the quotient, so it rounds alike unless
/// it lies that close to a half; only then is the division done. Adding 1.5 * 2^23 rounds to nearest even and
/// leaves the integer in the low bits; quotients stay below 2^16 because scale >= max|x| / 32767.
__device__ __forceinline__ int quantize_value_device(float x, DeviceGroup group, float reciprocal, int bits) {
  const float quotient = __fmul_rn(x, reciprocal);
  const float shifted = __fadd_rn(quotient, 12582912.0f);
  int code = __float_as_int(shifted) - 0x4B400000;
  const float rest = __fsub_rn(quotient, __fsub_rn(shifted, 12582912.0f));
  if (!(fabsf(rest) < __fmaf_rn(-4e-7f, fabsf(quotient), 0.5f)))
    code = __float2int_rn(__fdiv_rn(x, group.scale));
  return min(max(code + group.zero, 0), (1 << bits) - 1);
}

}  // namespace quatrain::ops
