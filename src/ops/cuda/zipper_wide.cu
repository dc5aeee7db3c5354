#include "ops/cuda/zipper_launch.h"
#include "ops/cuda/zipper_wide.cuh"

namespace quatrain::ops::zipper {
namespace {

template <int kBlocks>
void launch(const WideParams& params, const DeviceActivations& x, const WideActivations& prepared_x,
            int64_t zero_steps, cudaStream_t stream) {
  using S = WideShape<kBlocks>;
  constexpr int kBox = S::kTokens / S::kCluster;
  static const cudaError_t prepared =
      cudaFuncSetAttribute(wide_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  cuda_check(prepared, "wide zipper GEMM: shared memory (it needs a Hopper GPU)");
  cluster_launch(wide_kernel<S>, params.schedule.workers, S::kCluster, S::kThreads, S::kSharedBytes, stream,
                 true, byte_map(prepared_x.codes.data(), x.stride, x.tokens, kBox),
                 byte_map(prepared_x.zero.data(), zero_steps * kStepColumns, x.tokens, kBox), params);
}

}  // namespace

void launch_wide(int tile_tokens, const Params& params, const DeviceActivations& x, WideActivations& scratch,
                 cudaStream_t stream, bool overlap) {
  require(tile_tokens == 128 || (tile_tokens == 256 && !params.schedule.stream_k),
          "zipper GEMM: a wide plan with tiles of {} tokens{}", tile_tokens,
          params.schedule.stream_k ? ", shared" : "");
  scratch.fill(x, stream, overlap);
  const int64_t zero_steps = (params.schedule.steps + kZeroSteps - 1) / kZeroSteps;
  WideParams wide{params, scratch.token.data()};
  wide.scale = scratch.scale.data();
  wide.token_stride = scratch.token_stride;
  if (tile_tokens == 256) return launch<2>(wide, x, scratch, zero_steps, stream);
  launch<1>(wide, x, scratch, zero_steps, stream);
}

}  // namespace quatrain::ops::zipper
