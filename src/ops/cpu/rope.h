// What each instruction set gives to rope.cpp.
#pragma once

#include <cstdint>

namespace quatrain::ops {

/// low' = low * cos - high * sin, high' = high * cos + low * sin for `half` pairs.
using RopeKernel = void (*)(float* low, float* high, int64_t half, const float* cosine, const float* sine);

extern const RopeKernel rope_kernel_generic, rope_kernel_avx2, rope_kernel_avx512;

}  // namespace quatrain::ops
