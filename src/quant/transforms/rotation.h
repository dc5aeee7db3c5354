// Orthogonal matrices for merging, in FP64.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace quatrain {

/// The order of the Hadamard blocks for a width: the width itself where a Hadamard matrix of it exists, else
/// the largest power of two that divides it (the rotation is then block-diagonal; the caller logs it).
int64_t hadamard_order(int64_t width);

/// FP64 [width, width], x <- x Q with Q = D H / sqrt(order) in blocks of `order`, D the signs of `seed`
/// (base/hadamard_matrix.h). `offset` keeps the first sign of every block +1.
torch::Tensor hadamard_rotation(int64_t width, int64_t order, uint64_t seed, bool offset = false);

}  // namespace quatrain
