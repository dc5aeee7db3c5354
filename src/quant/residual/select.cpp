#include "quant/residual/select.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"

namespace quatrain {

std::vector<int32_t> select_blocks(std::span<const double> scores, double budget) {
  const double wanted =
      std::ceil(budget * static_cast<double>(scores.size()) - 1e-9);  // 0.1 * 10 is one block
  const auto count = static_cast<size_t>(std::clamp(wanted, 0.0, static_cast<double>(scores.size())));
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const double score_a = scores[static_cast<size_t>(a)], score_b = scores[static_cast<size_t>(b)];
    return score_a != score_b ? score_a > score_b : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(count), order.end(), better);
  order.resize(count);
  std::erase_if(order, [&](int32_t block) { return !(scores[static_cast<size_t>(block)] > 0); });
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<int32_t> select_block_columns(std::span<const double> scores, int64_t block_columns,
                                          double budget) {
  std::vector<double> sums(static_cast<size_t>(block_columns));
  for (size_t block = 0; block < scores.size(); ++block)
    sums[block % sums.size()] += std::max(scores[block], 0.0);
  const std::vector<int32_t> columns = select_blocks(sums, budget);
  std::vector<int32_t> blocks;
  for (size_t row = 0; row < scores.size() / sums.size(); ++row)
    for (const int32_t column : columns)
      blocks.push_back(static_cast<int32_t>(row) * static_cast<int32_t>(block_columns) + column);
  return blocks;
}

std::vector<double> random_scores(int64_t blocks, uint64_t seed, std::string_view name) {
  for (const char letter : name) seed = SplitMix64(seed ^ static_cast<uint8_t>(letter)).next();
  SplitMix64 rng(seed);
  std::vector<double> scores(static_cast<size_t>(blocks));
  for (double& score : scores) score = 1 - rng.uniform();
  return scores;
}

}  // namespace quatrain
