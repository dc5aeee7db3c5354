// The matrices of linears that share one input, as an engine multiplies them: those that agree on how the
// input becomes codes are one matrix.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/weight_source.h"
#include "model/config.h"
#include "ops/dense_matmul.h"

namespace quatrain {

struct LinearPart {
  std::string name;  // of its first linear, for messages
  LinearPolicy policy;
  int64_t rows = 0, columns = 0;
  std::optional<NibblePlanes> planes;  // or else:
  ops::RowReader read;                 // rows of the unquantised matrix, from several threads
  std::vector<float> bias;             // empty for none
};

/// Gives the parts in the order of the linears, one at a time, so that one is in memory. A mismatch of shape,
/// bits or bias is an Error that names the linear.
void load_linear_parts(const WeightSource& source, std::span<const LinearShape> linears,
                       const std::function<void(LinearPart&&)>& take);

}  // namespace quatrain
