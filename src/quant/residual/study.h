// How much of a matrix's output distortion residual blocks give back, by the rule that chooses them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace quatrain {

struct ResidualStudyOptions {
  std::vector<int64_t> layers;                     // from 0
  std::vector<double> budgets = {0.05, 0.1, 0.2};  // of the blocks of a matrix
  double alpha = 0.85;                             // of the smoothing before it; 0: none
  int64_t block = 128;                             // columns
  uint64_t seed = 0;                               // of random blocks
};

/// One matrix under one rule: the share of its output distortion
///   C(S) = 1 - ||X (R - M_S Q(R))||^2 / ||X R||^2,  R = W - Q(W),
/// that the chosen blocks S take away at each budget (MosaicQuant, arXiv 2606.15652, eq. 5), X the smoothed,
/// unquantised inputs of all samples. Rules: delta-hessian, weight-max, residual-norm, random, and channel
/// (whole input channels, 16 at a time, by the sum of delta-hessian).
struct ResidualStudyRow {
  std::string linear, rule;
  std::vector<double> recovered;  // one a budget
};

/// Every linear of the chosen layers of the dense 16-bit model at `model`, smoothed at all four sites
/// (SmoothQuant), round-to-nearest row scales. `samples`: token sequences.
std::vector<ResidualStudyRow> residual_study(const fs::path& model,
                                             const std::vector<std::vector<int32_t>>& samples,
                                             const ResidualStudyOptions& options);

/// A table, one line a matrix and rule, and the mean of every rule below.
std::string residual_study_text(const std::vector<ResidualStudyRow>& rows,
                                const ResidualStudyOptions& options);
Json residual_study_json(const std::vector<ResidualStudyRow>& rows, const ResidualStudyOptions& options);

}  // namespace quatrain
