// The zipper product by mma.sync (docs/zipper.md): native 4-bit products on Ampere and Ada (compute
// capability 8.x), 8-bit ones there for 8-bit activations and few tokens, and for everything on 12.x, which
// emulates the 4-bit instruction. The same formula, layout and order of sums as zipper_gemm.h.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/device_activations.h"
#include "ops/cuda/zipper_gemm.h"
#include "ops/cuda/zipper_matrix.h"

namespace quatrain::ops {

struct MmaPlan {
  bool nibbles;     // 4-bit products; x must have been packed
  int tile_tokens;  // 64 or 128 by nibbles, 16 or 64 by bytes
  int workers;      // CTAs
  bool stream_k;    // equal shares of all (tile, step) pairs; else whole tiles in turn
};

/// Fewest tokens that are worth packing: below, reading the weights is all that counts.
inline constexpr int64_t kLeastNibbleTokens = 17;

/// `nibbles` says whether x is packed. The thresholds follow from the model of
/// docs/measurements/gpu-ampere.md; they were not measured.
MmaPlan plan_mma(int64_t tokens, int64_t tiles, int64_t steps, int processors, bool nibbles);

/// y as zipper_gemm() computes it.
template <typename Out>
void zipper_mma(const ZipperMatrix& weights, const DeviceActivations& x, ZipperWorkspace& workspace,
                const MmaPlan& plan, Out* y, int64_t stride, cudaStream_t stream);

}  // namespace quatrain::ops
