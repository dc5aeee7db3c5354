// Which residual blocks a matrix keeps.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace quatrain {

/// The ceil(budget * blocks) blocks of the highest score, ascending; of equal scores the lower number wins.
/// Blocks whose score is 0 gain nothing and are left out. budget in [0, 1].
std::vector<int32_t> select_blocks(std::span<const double> scores, double budget);

/// The same for whole channels: the ceil(budget * block_columns) block columns of the highest sum of scores,
/// every block of them. scores: row-major [block_rows, block_columns].
std::vector<int32_t> select_block_columns(std::span<const double> scores, int64_t block_columns,
                                          double budget);

/// Delta-Hessian score of one weight (MosaicQuant, arXiv 2606.15652): what its low nibble takes from the
/// diagonal-Hessian distortion, h (R^2 - (R - Q(R))^2), with R the error of the 4-bit code and R - Q(R) that
/// of the 8-bit one. A block's score is the sum; select_blocks() drops what is not above 0.
inline double delta_hessian(double error4, double error8, double sensitivity) {
  return sensitivity * (error4 * error4 - error8 * error8);
}

/// A uniform score in (0, 1] for each block: the baseline of every comparison. `name` (the linear's) is mixed
/// into the seed, so that matrices of one shape differ.
std::vector<double> random_scores(int64_t blocks, uint64_t seed, std::string_view name);

}  // namespace quatrain
