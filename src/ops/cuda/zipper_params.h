// What the zipper products' kernels are told.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/cuda/device_activations.h"
#include "ops/cuda/zipper_matrix.h"
#include "ops/cuda/zipper_schedule.h"

namespace quatrain::ops::zipper {

/// Operands and results, the same for all.
struct Operands {
  const uint8_t* chunks;
  const uint8_t* residual;
  const uint32_t* blocks;
  const float* row_scale;
  const float* bias;    // or null
  const float* scale;   // [activation_groups, token_stride]
  const int32_t* zero;  // the same
  int64_t token_stride;
  int activation_group, activation_groups;
  int rows, tokens;
  void* y;  // FP32 or BF16
  bool y_fp32;
  int64_t y_stride;

  void set_weights(const ZipperMatrix& weights) {
    chunks = weights.chunks.data();
    residual = weights.residual.data();
    blocks = weights.blocks.data();
    row_scale = weights.row_scale.data();
    bias = weights.bias.data();
    rows = static_cast<int>(weights.rows);
  }
  void set_activations(const DeviceActivations& x) {
    scale = x.scale.data();
    zero = x.zero.data();
    token_stride = x.token_stride;
    activation_group = static_cast<int>(x.group);
    activation_groups = static_cast<int>(x.groups);
    tokens = static_cast<int>(x.tokens);
  }
  void set_results(float* results, int64_t stride) { y = results, y_fp32 = true, y_stride = stride; }
  void set_results(__nv_bfloat16* results, int64_t stride) { y = results, y_fp32 = false, y_stride = stride; }
};

/// Tiles by wgmma, for many tokens.
struct Params : Operands {
  bool stream_weights;  // each weight is read once: let it leave L2 first
  ZipperSchedule schedule;
  float* partial;
  int* arrived;
};

/// The wide kernel's: Operands::scale and token_stride are of WideActivations, zero is unused.
struct WideParams : Params {
  const float2* token;
};

}  // namespace quatrain::ops::zipper
