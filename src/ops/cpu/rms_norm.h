// What each instruction set gives to rms_norm.cpp.
#pragma once

#include <cstdint>

namespace quatrain::ops {

struct RmsNormKernel {
  /// sum of x[i]^2, in an order that depends on `width` only.
  float (*square_sum)(const float* x, int64_t width);
  /// y[i] = x[i] * factor * weight[i].
  void (*scale)(const float* x, int64_t width, float factor, const float* weight, float* y);
};

extern const RmsNormKernel rms_norm_kernel_generic, rms_norm_kernel_avx2, rms_norm_kernel_avx512;

}  // namespace quatrain::ops
