// One matrix of nibble planes as the artifact's tensors: their names, and every check on their contents.
#pragma once

#include <string>
#include <string_view>

#include "base/number_format.h"
#include "checkpoint/artifact.h"

namespace quatrain {

/// The suffixes of a quantised linear's own tensors, after "NAME.".
inline constexpr std::string_view kPlaneSuffixes[] = {"weight_hi", "weight_scale", "weight_lo",
                                                      "weight_lo_index"};

inline constexpr int64_t kMaxResidualBlock = int64_t{1} << 20;  // columns; keeps every size below 2^63

/// Throws unless the planes are a sound matrix: sizes fit rows, columns, group and block, columns are even,
/// scales are finite and not zero (FP16-representable where groups have one), block numbers ascend within the
/// matrix, lo nibbles past the edge are zero, bias is finite. `where` (file and linear) begins the text.
void check_planes(const NibblePlanes& planes, std::string_view where);

/// NAME's tensors as one matrix, checked. The weight group and the residual block are the policy's.
NibblePlanes read_planes(const TensorSource& tensors, std::string_view linear, const LinearPolicy& policy);

}  // namespace quatrain
