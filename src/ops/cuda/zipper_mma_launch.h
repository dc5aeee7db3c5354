// How zipper_mma() reaches its kernels, which are compiled for several architectures in files of their own.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/zipper_schedule.h"

namespace quatrain::ops::zipper {

struct MmaParams {
  const uint8_t* chunks;
  const uint8_t* residual;
  const uint32_t* blocks;
  const float* row_scale;
  const float* bias;     // or null
  const uint8_t* codes;  // nibbles [steps, token_stride, 64], or bytes [capacity, code_stride]
  const float* scale;    // [activation_groups, token_stride]
  const int32_t* zero;   // [zero_groups, token_stride]
  int64_t token_stride, code_stride;
  int activation_group, activation_shift, activation_groups;  // shift: log2 of the group, or -1
  int zero_group, zero_shift, zero_groups;
  int capacity, rows, tokens;
  int chunk_bytes;
  bool group_scales;
  ZipperSchedule schedule;
  float* partial;
  int* arrived;
  void* y;  // FP32 or BF16
  bool y_fp32;
  int64_t y_stride;
};

/// Tiles of 64 or 128 tokens, 4-bit products; drains of 32, 64 or 128 columns.
void launch_mma_nibbles(int tile_tokens, int drain, const MmaParams& params, cudaStream_t stream);
/// Tiles of 16 or 64 tokens, 8-bit products.
void launch_mma_bytes(int tile_tokens, int drain, const MmaParams& params, cudaStream_t stream);

}  // namespace quatrain::ops::zipper
