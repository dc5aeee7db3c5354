// OffQ (arXiv 2606.07116): outlier channels become offsets that the quantiser's zero point absorbs.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace quatrain {

/// The order of channels for groups of `group`, given each channel's largest magnitude: channel i of the
/// largest leads group i, the others follow in ascending order, the smallest in the first group.
/// magnitudes [width], width a multiple of group; int64 [width]. {1, 2, 3, 4, 50, 60} in two groups gives
/// the values {60, 1, 2 | 50, 3, 4}.
torch::Tensor offset_grouping(const torch::Tensor& magnitudes, int64_t group);

/// FP64 [width, width], orthogonal: the eigenvectors of rows^T rows / N (with 1 % damping) in descending
/// order, the grouping of their coordinates, offset_rotation() in each group. `rows` [N, width]: of every
/// sequence and site the one token of the largest magnitude.
torch::Tensor top1_pca_rotation(const torch::Tensor& rows, int64_t group, uint64_t seed);

/// The token of x [tokens, width] with the largest |value|, as one row [1, width].
torch::Tensor top1_token(const torch::Tensor& x);

}  // namespace quatrain
