// The zipper product by whichever kernels the GPU at hand has: wgmma (zipper_gemm.h) or mma.sync
// (zipper_mma.h).
#pragma once

#include "ops/cuda/device_activations.h"
#include "ops/cuda/zipper_gemm.h"
#include "ops/cuda/zipper_matrix.h"

namespace quatrain::ops {

/// How a product is summed: fastest for its number of tokens, or, with `invariant`, in an order that follows
/// from the matrix's shape and the GPU alone, so that a token's results are the same whatever it shares a
/// pass with.
struct ProductMode {
  bool invariant = false;
};

/// y [x.tokens, weights.rows], rows `stride` floats apart. x's codes must not have changed since
/// prepare_product(). The workspace must have room for the mode. `overlap`: where the GPU can, the kernel may
/// start while the one before it still runs.
void zipper_product(const ZipperMatrix& weights, const DeviceActivations& x, ZipperWorkspace& workspace,
                    ProductMode mode, float* y, int64_t stride, cudaStream_t stream, bool overlap);

/// Call once after codes of `bits` bits were written to x: packs 4-bit ones where the kernels read them so.
void prepare_product(DeviceActivations& x, int bits, cudaStream_t stream);

/// Parts that K is cut into for an invariant product of a matrix of tiles x steps chunks: as many as fill the
/// GPU with one token tile.
int fixed_splits(int64_t tiles, int64_t steps, int processors);
/// Floats of ZipperWorkspace::partial that invariant products of up to `tokens` tokens need.
int64_t invariant_partials(int64_t tiles, int64_t steps, int64_t tokens, int processors);
/// The plan of an invariant product on Hopper.
ZipperPlan plan_invariant(int64_t tokens, int64_t tiles, int64_t steps, int processors);

}  // namespace quatrain::ops
