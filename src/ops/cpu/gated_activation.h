// What each instruction set gives to gated_activation.cpp.
#pragma once

#include <cstdint>

#include "ops/gated_activation.h"

namespace quatrain::ops {

using GatedActivationKernel = void (*)(GateFunction function, const float* gate, const float* up,
                                       int64_t count, float* y);

extern const GatedActivationKernel gated_activation_kernel_generic, gated_activation_kernel_avx2,
    gated_activation_kernel_avx512;

}  // namespace quatrain::ops
