// 4-bit activations two a byte, for GPUs whose tensor cores multiply 4-bit operands.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/device_activations.h"

namespace quatrain::ops {

/// Fills x.nibbles and x.nibble_zero from x.codes, which must be of 4 bits: within each unit of 32, 64 or 128
/// columns the smallest code becomes 0 and moves the unit's zero along, so that x[t, k] stays exactly
/// scale * (nibble - nibble_zero). Sets x.packed.
void pack_nibbles(DeviceActivations& x, cudaStream_t stream);

}  // namespace quatrain::ops
