// Weights that a file holds as integers: what they are before anybody turns them into floating point.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/number_format.h"
#include "checkpoint/tensor_source.h"

namespace quatrain {

/// Rows of a matrix whose weights are scale * code exactly: symmetric, groups of consecutive columns.
struct StoredCodes {
  int bits = 0;  // 4: codes in [-8, 7]; 8: codes in [-128, 127]
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t group = 0;          // columns that share a scale; 0: the whole row
  std::vector<int8_t> codes;  // [rows, columns]
  std::vector<float> scale;   // [rows, groups()]; finite, of either sign, or zero

  int64_t groups() const { return group == 0 ? 1 : (columns + group - 1) / group; }
  /// One row as FP32 weights.
  void dequantize_row(int64_t row, float* out) const;
};

/// Rows [begin, begin + count) of a tensor as integers: Q4_0 and Q8_0 of GGUF, and matrices of a
/// PackedSource whose codes fit. nullopt for every other tensor.
std::optional<StoredCodes> read_stored_codes(const TensorSource& source, const TensorInfo& tensor,
                                             int64_t begin, int64_t count);

/// How the tensor's file says that the matrix' input is quantised; 16 bits where it says nothing.
ActivationPolicy stored_activation(const TensorSource& source, const TensorInfo& tensor);

/// The same weights as nibble planes: 4-bit codes as the high plane alone, 8-bit codes with a residual in
/// every block. nullopt, with the reason in `why`, where planes cannot hold them exactly (a group's scale
/// that is no FP16 number, an odd width).
std::optional<NibblePlanes> planes_of_codes(const StoredCodes& codes, std::string& why);

/// The same weights in smaller groups, scales repeated. `group` divides the codes' own group, or their
/// columns where that is the row.
StoredCodes in_groups_of(StoredCodes codes, int64_t group);

/// The codes of nibble planes: 4 bits without a residual, else 8.
StoredCodes codes_of_planes(const NibblePlanes& planes);

}  // namespace quatrain
