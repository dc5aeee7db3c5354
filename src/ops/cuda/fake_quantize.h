// Rows replaced by the values that their codes stand for: what a product in FP32 needs where no integer
// kernel takes the groups.
#pragma once

#include <cstdint>

#include "base/number_format.h"
#include "ops/cuda/device_buffer.h"

namespace quatrain::ops {

/// x <- s (q - z) of every group, in place, rows of `width` values side by side; groups of any width. `bad`
/// as in RowOptions.
void fake_quantize_rows(float* x, int64_t rows, int64_t width, const ActivationPolicy& policy,
                        unsigned long long* bad, cudaStream_t stream);

}  // namespace quatrain::ops
