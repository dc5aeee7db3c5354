// y = x W^T over nibble planes on Hopper's integer tensor cores (docs/zipper.md):
//   y[t,o] = sum_g s[t,g] * scale[o(,g)]/16 * (P[t,o,g] - z[t,g] * S[o,g]) + bias[o],  P = sum_k q c,
//   S = sum_k c.
// P and S are exact; groups are summed in FP32.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/device_activations.h"
#include "ops/cuda/zipper_matrix.h"
#include "ops/cuda/zipper_schedule.h"
#include "ops/cuda/zipper_wide_activations.h"

namespace quatrain::ops {

/// Partial sums of tiles that several workers share, and activations as the wide kernel takes them. One a
/// stream: calls that share it must not overlap.
class ZipperWorkspace {
 public:
  /// Room for any product with up to `rows` x `tokens` results on the current GPU; by the wide kernel, for
  /// many tokens, only of matrices of up to `columns` columns.
  ZipperWorkspace(int64_t rows, int64_t tokens, int64_t columns = 0);

  DeviceBuffer<float> partial;  // [workers, 2, rows of a tile x tokens of a tile]
  DeviceBuffer<int> arrived;    // [tiles * 2]; zero between calls
  WideActivations wide;         // where the constructor was told of columns
  int processors = 0;
  ZipperSlots slots = 0;
};

/// y [x.tokens, weights.rows], rows `stride` elements apart, as BF16 or FP32. x must be quantised in the
/// groups that the matrix was packed for. Runs on `stream` without host synchronisation; with `overlap` the
/// kernel may start while the one before it in the stream still runs (programmatic dependent launch).
void zipper_gemm(const ZipperMatrix& weights, const DeviceActivations& x, ZipperWorkspace& workspace,
                 __nv_bfloat16* y, int64_t stride, cudaStream_t stream, bool overlap = false);
void zipper_gemm(const ZipperMatrix& weights, const DeviceActivations& x, ZipperWorkspace& workspace,
                 float* y, int64_t stride, cudaStream_t stream, bool overlap = false);

/// The same with a plan of the caller's: for tests and for measuring the table.
template <typename Out>
void zipper_gemm_planned(const ZipperMatrix& weights, const DeviceActivations& x, ZipperWorkspace& workspace,
                         const ZipperPlan& plan, Out* y, int64_t stride, cudaStream_t stream, bool overlap);

}  // namespace quatrain::ops
