// RMSNorm: y = x * weight / sqrt(mean(x^2) + epsilon), row by row.
#pragma once

#include <cstdint>

namespace quatrain::ops {

/// x and y are [rows, width], rows `x_stride` and `y_stride` floats apart; y may be x. `weight` has `width`
/// values, an offset (Gemma's 1) already added. Returns the first row whose mean square is NaN or infinite,
/// or -1; that row's y is undefined.
int64_t rms_norm(const float* x, int64_t rows, int64_t x_stride, int64_t width, const float* weight,
                 float epsilon, float* y, int64_t y_stride);

}  // namespace quatrain::ops
