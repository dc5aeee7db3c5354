#include "ops/cuda/zipper_mma.cuh"

namespace quatrain::ops::zipper {

void launch_mma_bytes(int tile_tokens, int drain, const MmaParams& params, cudaStream_t stream) {
  if (tile_tokens == 16) return launch_mma<false, 16>(drain, params, stream);
  launch_mma<false, 64>(drain, params, stream);
}

}  // namespace quatrain::ops::zipper
