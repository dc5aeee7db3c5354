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

/// A uniform score in (0, 1] for each block: the baseline of every comparison. `name` (the linear's) is mixed
/// into the seed, so that matrices of one shape differ.
std::vector<double> random_scores(int64_t blocks, uint64_t seed, std::string_view name);

}  // namespace quatrain
