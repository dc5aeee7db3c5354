// Codes into nibble planes (base/number_format.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/number_format.h"

namespace quatrain {

/// Planes of the given shape with all codes zero and all scales 1. `selected`: ascending row-major numbers of
/// the blocks that have a low nibble.
NibblePlanes make_planes(int64_t rows, int64_t columns, int64_t weight_group, int64_t residual_block,
                         std::vector<int32_t> selected);

/// The numbers of all blocks of a matrix: what an 8-bit matrix selects.
std::vector<int32_t> all_blocks(int64_t rows, int64_t columns, int64_t residual_block);

/// Rounds one row of weights with the scales that `planes` already holds for it and stores the codes:
/// c = clamp(rint(16 w / scale), -128, 127) in blocks with a low nibble, 16 clamp(rint(w / scale), -8, 7)
/// elsewhere; half to even. Returns sum (w^ - w)^2. Rows of different 16-row blocks may be stored by
/// different threads.
double store_row(NibblePlanes& planes, int64_t row, std::span<const float> weights);

/// Stores one row of finished codes: multiples of 16 outside the blocks that have a low nibble.
void store_codes(NibblePlanes& planes, int64_t row, std::span<const int> codes);

/// Rows [begin, end) as a matrix of their own, without bias; both are multiples of the residual's 16 rows or
/// the matrix's end.
NibblePlanes slice_rows(const NibblePlanes& planes, int64_t begin, int64_t end);

}  // namespace quatrain
