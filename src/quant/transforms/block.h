// Block-diagonal transforms of the inputs of linears, as the reference applies and the quantiser merges them.
#pragma once

#include <torch/torch.h>

#include <cstdint>

#include "checkpoint/artifact.h"

namespace quatrain {

/// The blocks FP32 [width / n, n, n] of a constructed transform (hadamard, grouped-hadamard,
/// grouped-offset-hadamard); undefined for "none".
torch::Tensor constructed_blocks(const Transform& transform, int64_t width);

/// x_b A_b in every block: x [tokens, blocks * n], blocks [blocks, n, n]. Undefined blocks return x.
torch::Tensor apply_blocks(const torch::Tensor& x, const torch::Tensor& blocks);

/// W with the inverse of the transform merged into its columns, W_b A_b^-T: x A (W A^-T)^T = x W^T. Computed
/// in FP64, rounded once to FP32. weight [out, blocks * n].
torch::Tensor merge_blocks(const torch::Tensor& weight, const torch::Tensor& blocks);

}  // namespace quatrain
