// What the zipper GEMM's kernels for many tokens are told.
#pragma once

#include <cstdint>

#include "ops/cuda/zipper_schedule.h"

namespace quatrain::ops::zipper {

struct Params {
  const uint8_t* chunks;
  const uint8_t* residual;
  const uint32_t* blocks;
  const float* row_scale;
  const float* bias;  // or null
  const float* scale;
  const int32_t* zero;
  int64_t token_stride;
  int activation_group, activation_groups;
  int rows, tokens;
  bool stream_weights;  // each weight is read once: let it leave L2 first
  ZipperSchedule schedule;
  float* partial;
  int* arrived;
  void* y;  // FP32 or BF16
  bool y_fp32;
  int64_t y_stride;
};

}  // namespace quatrain::ops::zipper
