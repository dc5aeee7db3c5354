// Means of items and how sure they are.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

namespace quatrain {

struct Estimate {
  double mean = 0;
  double error = 0;  // standard error of the mean; NaN for fewer than two values
  int64_t count = 0;
};

/// The mean, and the sample's standard deviation over sqrt(n).
Estimate estimate_mean(std::span<const double> values);

/// The mean over all values of several groups, with the error that lm-evaluation-harness gives: groups are
/// fixed, only items within them vary. sqrt(sum (n - 1) n e^2 / (N - groups) / N).
Estimate pool(std::span<const Estimate> groups);

}  // namespace quatrain
