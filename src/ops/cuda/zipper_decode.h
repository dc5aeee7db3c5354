// Products of up to 16 tokens on Hopper (docs/zipper.md), and what they take along of the steps beside them
// where tokens are few: the norm that makes their input's codes, the gate that makes the next product's.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/device_activations.h"
#include "ops/cuda/quantize_rows.h"
#include "ops/cuda/zipper_matrix.h"
#include "ops/cuda/zipper_schedule.h"

namespace quatrain::ops {

/// FP32 rows that rms_norm_quantize() would turn into codes in groups of the matrix's; options.sum must not
/// be x.
struct NormedRows {
  const float* x = nullptr;
  int64_t tokens = 0, stride = 0;
  float epsilon = 0;
  RowOptions options;
};

/// Codes, or else rows, that every CTA quantises for itself.
struct DecodeInput {
  const DeviceActivations* codes = nullptr;
  const NormedRows* rows = nullptr;

  int64_t tokens() const { return codes != nullptr ? codes->tokens : rows->tokens; }
};

/// With `overlap` the kernel may start while the one before it in the stream still runs (programmatic
/// dependent launch).
struct DecodeLaunch {
  cudaStream_t stream = nullptr;
  bool overlap = false;
};

/// Whether a product takes these rows, and is not slower for it than behind a kernel of their own.
bool decode_takes_rows(const ZipperMatrix& weights, const NormedRows& rows);
/// Whether a product with gates and ups stacked makes the codes of silu_mul_quantize() with these options,
/// and is not slower for it: groups and transforms of up to 128 columns, and a width that fills the GPU's
/// processors with 128 columns each.
bool decode_takes_gate(const ZipperMatrix& gate_up, int64_t tokens, const RowOptions& options,
                       const DeviceActivations& out, int processors);

/// y [tokens, weights.rows], rows `stride` elements apart.
template <typename Out>
void zipper_decode(const ZipperMatrix& weights, const DecodeInput& input, const ZipperPlan& plan, Out* y,
                   int64_t stride, const DecodeLaunch& launch);

/// out = codes of gate * up, the bits of a zipper_decode() of one slice and silu_mul_quantize().
void zipper_decode_gated(const ZipperMatrix& gate_up, const DecodeInput& input, const RowOptions& options,
                         int processors, DeviceActivations& out, const DecodeLaunch& launch);

}  // namespace quatrain::ops
