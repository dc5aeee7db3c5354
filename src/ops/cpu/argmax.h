// What each instruction set gives to argmax.cpp.
#pragma once

#include <cstdint>

namespace quatrain::ops {

/// The largest of `count` > 0 values; `nan` is set where one is NaN.
using ArgmaxKernel = float (*)(const float* x, int64_t count, bool& nan);

extern const ArgmaxKernel argmax_kernel_generic, argmax_kernel_avx2, argmax_kernel_avx512;

}  // namespace quatrain::ops
