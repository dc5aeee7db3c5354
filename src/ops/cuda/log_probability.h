// Scores of given tokens, so that a row of logits need not leave the GPU.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quatrain::ops {

/// out[i] = x[i, targets[i]] - log(sum over j of exp(x[i, j])) of x [rows, width]: the natural logarithm of
/// the target's probability. targets lie in [0, width). A row with a NaN gives NaN.
void log_probability_rows(const float* x, int64_t rows, int64_t width, const int32_t* targets, float* out,
                          cudaStream_t stream);

}  // namespace quatrain::ops
