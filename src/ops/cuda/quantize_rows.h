// Rows to codes in one pass over memory: what feeds every zipper GEMM.
#pragma once

#include <cuda_bf16.h>

#include "base/number_format.h"
#include "ops/cuda/device_activations.h"

namespace quatrain::ops {

/// What happens to a row between its load and its codes: norm, gain, Hadamard, in this order.
struct RowOptions {
  ActivationPolicy policy;      // 4 or 8 bits; groups of 32, 64, 128, 256 columns or the whole row
  const float* gain = nullptr;  // [width] on the GPU: the norm's gain, or any diagonal scale
  int hadamard = 0;   // order of the blocks of a normalised Hadamard transform: 0, or a power of two
                      // from 8 that divides the width
  bool gelu = false;  // the gate's function: GELU in its tanh form, not SiLU
  /// RMSNorm: FP32 [tokens, width] to add to x first; the sums are stored in `sum`, which may be x.
  const float* add = nullptr;
  float* sum = nullptr;
  /// Where non-finite values are reported: the smallest token * width + column, found by atomicMin; set it to
  /// ~0 before. The codes of such a group are undefined. RMSNorm reports values before the norm, and the
  /// row's last column where only their mean square is not finite.
  unsigned long long* bad = nullptr;
};

/// Quantises x [out.tokens, out.width], rows `stride` elements apart, of BF16 or FP32.
template <typename T>
void quantize_rows(const T* x, int64_t stride, const RowOptions& options, DeviceActivations& out,
                   cudaStream_t stream, bool overlap = false);

/// The same after RMSNorm: x / sqrt(mean(x^2) + epsilon) * gain.
template <typename T>
void rms_norm_quantize(const T* x, int64_t stride, float epsilon, const RowOptions& options,
                       DeviceActivations& out, cudaStream_t stream, bool overlap = false);

/// The same after SiLU(gate) * up, or GELU; a row of x holds out.width gates, then as many ups.
template <typename T>
void silu_mul_quantize(const T* x, int64_t stride, const RowOptions& options, DeviceActivations& out,
                       cudaStream_t stream, bool overlap = false);

}  // namespace quatrain::ops
