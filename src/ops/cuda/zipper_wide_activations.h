// Activations as the wide zipper GEMM multiplies them (docs/zipper.md, "The wide kernel").
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "ops/cuda/device_activations.h"

namespace quatrain::ops {

inline constexpr int kZeroSteps = 32;  // steps whose zeros one step of FP16 products subtracts

/// Of (token t, step k of 128 columns), from x[t] = s * (code - z): codes q = code - (their least one), which
/// move the zero; s' = s / unit of the token, a power of two, at most 1; u = s' * zero.
struct WideActivations {
  WideActivations() = default;
  /// Room for `tokens` rows of up to `columns` columns.
  WideActivations(int64_t tokens, int64_t columns);

  /// From x, which stays as it is. `overlap` as in zipper_gemm.
  void fill(const DeviceActivations& x, cudaStream_t stream, bool overlap);
  bool holds(int64_t rows, int64_t columns) const;

  int64_t capacity = 0, widest = 0;  // tokens, columns rounded up to 128
  int64_t token_stride = 0;          // capacity rounded up to 128
  DeviceBuffer<uint8_t> codes;       // [tokens, width rounded up to 128], the tail zero
  /// [steps, token_stride]: s' * 2^126, negative where the step is odd.
  DeviceBuffer<float> scale;
  /// [tokens, zero steps, 2, kZeroSteps]: u as the sum of two FP16 numbers; zeros past the last step.
  DeviceBuffer<__half> zero;
  /// [tokens]: x the sum over steps of -128 s' Q (even) or 127 s' Q (odd), Q the sum of the step's q, times
  /// 2^-23; y the unit times 2^23.
  DeviceBuffer<float2> token;
};

}  // namespace quatrain::ops
