// The reference's row loops (row_math.h) as torch operations: for inputs that require gradients, and for
// those on another device than the CPU.
#pragma once

#include <torch/torch.h>

#include <cstdint>

#include "quant/reference/row_math.h"

namespace quatrain::operations {

/// x / rms(x) * gain over the last dimension.
torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& gain, double epsilon);

/// RoPE of x [tokens, heads, dim] by the angles of cosine, sine [tokens, half]; columns past 2 half stay.
torch::Tensor rotate(const torch::Tensor& x, const torch::Tensor& cosine, const torch::Tensor& sine);

/// Causal attention within each of `sequences` of equal length that lie behind one another: queries [tokens,
/// heads, dim], already scaled, keys and values [tokens, kv_heads, dim] -> [tokens, heads * dim]. window > 0:
/// keys `window` or more before a query are hidden.
torch::Tensor attend(const torch::Tensor& queries, const torch::Tensor& keys, const torch::Tensor& values,
                     int64_t window, int64_t sequences = 1);

/// s (q - z) of x [rows, width], groups of `group` along a row, the last may be narrower: the values of
/// quantize_rows() bit for bit. Not for gradients.
torch::Tensor quantize_rows(const torch::Tensor& x, int64_t group, const GroupRule& rule);

/// `quantized` with the gradient of x: rounding counts as the identity.
torch::Tensor straight_through(const torch::Tensor& x, const torch::Tensor& quantized);

}  // namespace quatrain::operations
