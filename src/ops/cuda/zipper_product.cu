#include <algorithm>

#include "ops/cuda/gpu.h"
#include "ops/cuda/nibble_activations.h"
#include "ops/cuda/zipper_mma.h"
#include "ops/cuda/zipper_product.h"

namespace quatrain::ops {

int fixed_splits(int64_t tiles, int64_t steps, int processors) {
  // Two CTAs a processor; a part of at least four steps, as everywhere.
  return static_cast<int>(std::clamp<int64_t>(2 * processors / tiles, 1, std::max<int64_t>(steps / 4, 1)));
}

int64_t invariant_partials(int64_t tiles, int64_t steps, int64_t tokens, int processors) {
  const int64_t splits = fixed_splits(tiles, steps, processors);
  // Pairs of CTAs round the tiles up; a worker has room for two shares (zipper_gemm.h).
  return splits == 1 ? 0 : (tokens + 127) / 128 * 128 * (tiles + 1) * splits * 2 * kTileRows;
}

ZipperPlan plan_invariant(int64_t tokens, int64_t tiles, int64_t steps, int processors) {
  ZipperPlan plan{};
  plan.kernel = ZipperPlan::Kernel::Gemm;
  plan.tile_tokens = tokens <= 16 ? 16 : tokens <= 32 ? 32 : tokens <= 64 ? 64 : 128;
  const int cluster = plan.tile_tokens == 128 ? 2 : 1;
  const int64_t outputs =
      (tiles + cluster - 1) / cluster * ((tokens + plan.tile_tokens - 1) / plan.tile_tokens);
  const int splits = fixed_splits(tiles, steps, processors);
  const int slots = processors * (plan.tile_tokens <= 32 ? 2 : 1) / cluster;
  plan.stream_k = splits > 1;
  // With a worker a part, the equal shares of stream-K are the parts.
  plan.workers = static_cast<int>(splits > 1 ? outputs * splits : std::min<int64_t>(outputs, slots));
  return plan;
}

void zipper_product(const ZipperMatrix& weights, const DeviceActivations& x, ZipperWorkspace& workspace,
                    ProductMode mode, float* y, int64_t stride, cudaStream_t stream, bool overlap) {
  if (x.tokens == 0) return;
  if (gpu_kernels() == GpuKernels::Wgmma) {
    if (!mode.invariant) return zipper_gemm(weights, x, workspace, y, stride, stream, overlap);
    const ZipperPlan plan = plan_invariant(x.tokens, weights.tiles, weights.steps, workspace.processors);
    return zipper_gemm_planned(weights, x, workspace, plan, y, stride, stream, overlap);
  }
  MmaPlan plan = plan_mma(x.tokens, weights.tiles, weights.steps, workspace.processors, x.packed);
  if (mode.invariant) {
    const int splits = fixed_splits(weights.tiles, weights.steps, workspace.processors);
    const int64_t outputs = weights.tiles * ((x.tokens + plan.tile_tokens - 1) / plan.tile_tokens);
    plan.stream_k = splits > 1;
    plan.workers =
        static_cast<int>(splits > 1 ? outputs * splits : std::min<int64_t>(outputs, workspace.processors));
  }
  zipper_mma(weights, x, workspace, plan, y, stride, stream);
}

void prepare_product(DeviceActivations& x, int bits, cudaStream_t stream) {
  x.packed = false;
  if (bits == 4 && x.tokens >= kLeastNibbleTokens && gpu_kernels() == GpuKernels::Nibbles)
    pack_nibbles(x, stream);
}

}  // namespace quatrain::ops
