#include "ops/cuda/zipper_mma.cuh"

namespace quatrain::ops::zipper {

void launch_mma_nibbles(int tile_tokens, int drain, const MmaParams& params, cudaStream_t stream) {
  if (tile_tokens == 64) return launch_mma<true, 64>(drain, params, stream);
  launch_mma<true, 128>(drain, params, stream);
}

}  // namespace quatrain::ops::zipper
