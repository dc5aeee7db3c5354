// What each instruction set gives to dense_matmul.cpp.
#pragma once

#include <cstdint>

#include "ops/dense_matmul.h"

namespace quatrain::ops {

struct DenseKernel {
  int64_t panel;   // weight rows of a panel: two vectors
  int64_t tokens;  // most tokens of one call
  /// y[t, 0..valid) = sum_k x[k * tokens + t] * panel[k, row] + bias, for `tokens` tokens interleaved in x.
  /// bias has `panel` values.
  void (*run)(WeightType type, const void* panel, int64_t columns, const float* x, int64_t tokens,
              const float* bias, int64_t valid, float* y, int64_t y_stride);
};

extern const DenseKernel dense_kernel_generic, dense_kernel_avx2, dense_kernel_avx512;

}  // namespace quatrain::ops
