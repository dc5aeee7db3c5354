#include "ops/cuda/zipper_launch.h"
#include "ops/cuda/zipper_wide.cuh"

namespace quatrain::ops::zipper {
namespace {

template <int kBlocks>
void launch(const Params& params, const DeviceActivations& x, cudaStream_t stream, bool overlap) {
  using S = WideShape<kBlocks>;
  static const cudaError_t prepared =
      cudaFuncSetAttribute(wide_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  cuda_check(prepared, "wide zipper GEMM: shared memory (it needs a Hopper GPU)");
  cluster_launch(wide_kernel<S>, params.schedule.workers, S::kCluster, S::kThreads, S::kSharedBytes, stream,
                 overlap, code_map(x, S::kTokens / S::kCluster), params);
}

}  // namespace

void launch_wide(int tile_tokens, const Params& params, const DeviceActivations& x, cudaStream_t stream,
                 bool overlap) {
  require(tile_tokens == 128 || (tile_tokens == 256 && !params.schedule.stream_k),
          "zipper GEMM: a wide plan with tiles of {} tokens{}", tile_tokens,
          params.schedule.stream_k ? ", shared" : "");
  if (tile_tokens == 256) return launch<2>(params, x, stream, overlap);
  launch<1>(params, x, stream, overlap);
}

}  // namespace quatrain::ops::zipper
