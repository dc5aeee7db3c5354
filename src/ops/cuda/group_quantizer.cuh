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

/// rint(x / scale), for as many values. x * reciprocal is within 4e-7 of the quotient, so it rounds alike
/// unless it lies that close to a half; only then are divisions done, for all: one branch. Adding 1.5 * 2^23
/// rounds to nearest even and leaves the integer in the low bits; quotients stay below 2^16 because scale >=
/// max|x| / 32767.
template <int kValues>
__device__ __forceinline__ void rounded_quotients(const float (&x)[kValues], float scale, float reciprocal,
                                                  int (&quotients)[kValues]) {
  bool sure = true;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const float quotient = __fmul_rn(x[i], reciprocal);
    const float shifted = __fadd_rn(quotient, 12582912.0f);
    quotients[i] = __float_as_int(shifted) - 0x4B400000;
    const float rest = __fsub_rn(quotient, __fsub_rn(shifted, 12582912.0f));
    sure = fabsf(rest) < __fmaf_rn(-4e-7f, fabsf(quotient), 0.5f) && sure;
  }
  if (sure) return;
#pragma unroll
  for (int i = 0; i < kValues; ++i) quotients[i] = __float2int_rn(__fdiv_rn(x[i], scale));
}

/// a / b to nearest, with 1 / b to nearest as `reciprocal`: Markstein's theorem, for operands and quotients
/// well inside the normal numbers.
__device__ __forceinline__ float divide_by(float a, float b, float reciprocal) {
  const float quotient = __fmul_rn(a, reciprocal);
  return __fmaf_rn(__fmaf_rn(-quotient, b, a), reciprocal, quotient);
}

/// From the group's extremes; `force_zero` for groups wider than 256.
__device__ __forceinline__ DeviceGroup quantize_group_device(float low, float high, int bits, bool symmetric,
                                                             bool force_zero) {
  const float magnitude = fmaxf(fabsf(low), fabsf(high));
  if (magnitude == 0) return {1.0f, 0};
  if (force_zero) {
    low = fminf(low, 0.0f);
    high = fmaxf(high, 0.0f);
  }
  const auto levels = static_cast<float>(symmetric ? (1 << (bits - 1)) - 1 : (1 << bits) - 1);
  const float range = symmetric ? magnitude : __fsub_rn(high, low);
  float scale;
  if (range > 1e-30f && range < 1e30f && range * 32000.0f > magnitude * levels)  // no floor holds it up
    scale = divide_by(range, levels, __frcp_rn(levels));
  else
    scale = fmaxf(__fdiv_rn(range, levels), fmaxf(__fdiv_rn(magnitude, 32767.0f), FLT_MIN));
  if (symmetric) return {scale, 1 << (bits - 1)};
  const float start[1] = {-low};
  int zero[1];
  rounded_quotients(start, scale, group_reciprocal(scale), zero);
  return {scale, zero[0]};
}

/// rint(x / scale) + zero, clamped.
__device__ __forceinline__ int quantize_value_device(float x, DeviceGroup group, float reciprocal, int bits) {
  const float value[1] = {x};
  int quotient[1];
  rounded_quotients(value, group.scale, reciprocal, quotient);
  return min(max(quotient[0] + group.zero, 0), (1 << bits) - 1);
}

}  // namespace quatrain::ops
