#include "eval/tasks/statistics.h"

#include <cmath>
#include <limits>

namespace quatrain {

Estimate estimate_mean(std::span<const double> values) {
  Estimate estimate{0, std::numeric_limits<double>::quiet_NaN(), std::ssize(values)};
  const auto count = static_cast<double>(values.size());
  for (const double value : values) estimate.mean += value / count;
  double squares = 0;
  for (const double value : values) squares += (value - estimate.mean) * (value - estimate.mean);
  if (values.size() >= 2) estimate.error = std::sqrt(squares / (count - 1) / count);
  return estimate;
}

Estimate pool(std::span<const Estimate> groups) {
  Estimate all{0, std::numeric_limits<double>::quiet_NaN(), 0};
  double variance = 0;
  for (const Estimate& group : groups) all.count += group.count;
  for (const Estimate& group : groups) {
    const auto count = static_cast<double>(group.count);
    all.mean += group.mean * count / static_cast<double>(all.count);
    if (group.count >= 2) variance += (count - 1) * count * group.error * group.error;
  }
  const int64_t freedom = all.count - std::ssize(groups);
  if (freedom > 0)
    all.error = std::sqrt(variance / static_cast<double>(freedom) / static_cast<double>(all.count));
  return all;
}

}  // namespace quatrain
