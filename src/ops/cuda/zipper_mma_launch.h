// How zipper_mma() reaches its kernels, which are compiled for several architectures in files of their own.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/zipper_params.h"

namespace quatrain::ops::zipper {

struct MmaParams : Operands {
  const uint8_t* codes;  // nibbles [steps, token_stride, 64], or bytes [capacity, code_stride]
  int64_t code_stride;
  int activation_shift;                     // log2 of the group, or -1
  int zero_group, zero_shift, zero_groups;  // of zero [zero_groups, token_stride]
  int capacity;
  int chunk_bytes;
  bool group_scales;
  ZipperSchedule schedule;
  float* partial;
  int* arrived;
};

/// Tiles of 64 or 128 tokens, 4-bit products; drains of 32, 64 or 128 columns.
void launch_mma_nibbles(int tile_tokens, int drain, const MmaParams& params, cudaStream_t stream);
/// Tiles of 16 or 64 tokens, 8-bit products.
void launch_mma_bytes(int tile_tokens, int drain, const MmaParams& params, cudaStream_t stream);

}  // namespace quatrain::ops::zipper
