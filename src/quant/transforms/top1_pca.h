// OffQ (arXiv 2606.07116): outlier channels become offsets that the quantiser's zero point absorbs.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace quatrain {

/// The order of channels for groups of `group`, given each channel's largest magnitude: channel i of the
/// largest leads group i, the others follow in ascending order, the smallest in the first group.
/// magnitudes [width], width a multiple of group; int64 [width]. {1, 2, 3, 4, 50, 60} in two groups gives
/// the values {60, 1, 2 | 50, 3, 4}. `zigzag` deals them out one a group instead: {60, 1, 3 | 50, 2, 4}.
torch::Tensor offset_grouping(const torch::Tensor& magnitudes, int64_t group, bool zigzag = false);

struct OffsetRotation {
  bool zigzag = false;  // offset_grouping()
  bool hadamard =
      true;  // offset_rotation() inside the groups; false: any orthogonal matrix with a constant first row
};

/// FP64 [width, width], orthogonal: the eigenvectors of `moments` (x^T x / N of the rows that count, with 1 %
/// damping) in descending order, the grouping of their coordinates, offset_rotation() in each group. `rows`
/// [N, width] give each coordinate's largest magnitude, the key of the grouping; undefined: its root mean
/// square is the key. Computed where `moments` lie.
torch::Tensor offset_pca_rotation(const torch::Tensor& moments, const torch::Tensor& rows, int64_t group,
                                  uint64_t seed, const OffsetRotation& options = {});

/// OffQ's: moments and magnitudes of `rows` [N, width], of every sequence and site the one token of the
/// largest magnitude.
torch::Tensor top1_pca_rotation(const torch::Tensor& rows, int64_t group, uint64_t seed,
                                const OffsetRotation& options = {});

/// The token of x [tokens, width] with the largest |value|, as one row [1, width].
torch::Tensor top1_token(const torch::Tensor& x);

}  // namespace quatrain
