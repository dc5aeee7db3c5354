// Round to nearest: a matrix that streams through in rows becomes nibble planes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/number_format.h"
#include "base/thread_pool.h"

namespace quatrain {

/// The stages of a recipe that shape one matrix, groups already fitted to its width.
struct WeightFormat {
  int bits = 4;  // 8: every block has its low nibbles, scale = 16 max / 127
  int64_t group = 0;
  bool clip = false;
  int64_t residual_block = 128;
  double residual_budget = 0;  // share of the blocks with a low nibble; 4 bits only
  std::string residual_score = "residual-norm";
  std::string residual_unit = "block";                // block | channel (select_block_columns)
  std::vector<float> column_weight = {};              // hessian scores: of each column's squared error
  std::optional<std::vector<int32_t>> selected = {};  // blocks that were chosen elsewhere; no budget then
  uint64_t seed = 0;
};

/// Rows [begin, end) of the matrix, row-major. Called from several threads at once.
using RowReader = std::function<std::vector<float>(int64_t begin, int64_t end)>;

struct QuantizedMatrix {
  NibblePlanes planes;
  double squared_error = 0;  // sum (w^ - w)^2
  double squared_norm = 0;   // sum w^2
};

/// Scale by group (quant/weights/scales.h), blocks by score (residual-norm: sum of the 4-bit error
/// squared, hessian-diagonal: the same with column weights, delta-hessian: what the low nibble takes from
/// that (residual/select.h), weight-max: the largest |w|, random), codes by quant/weights/planes.h. Beside
/// the planes, memory is a few rows a thread, whatever the group; a budget between 0 and 1 with a score over
/// weights reads the rows twice. `name` goes into errors and random scores. The result does not depend on the
/// number of threads.
QuantizedMatrix quantize_rtn(const std::string& name, int64_t rows, int64_t columns, const RowReader& read,
                             const WeightFormat& format, ThreadPool& pool);

}  // namespace quatrain
