// GGUF's Q4_0 and Q8_0 as integers with a scale for every 32 columns, there and back.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "checkpoint/stored_codes.h"

namespace quatrain {

/// Rows [begin, begin + count) of a Q4_0 or Q8_0 tensor.
StoredCodes decode_gguf_codes(const TensorSource& source, const TensorInfo& tensor, int64_t begin,
                              int64_t count);

/// The codes as blocks of `type`: "Q4_0" (4-bit codes only) or "Q8_0". The group must be a multiple of 32 or
/// the row, columns a multiple of 32. Scales are rounded to FP16; one that FP16 cannot hold to 11 bits is an
/// error that begins with `where`.
std::vector<std::byte> encode_gguf_codes(const StoredCodes& codes, std::string_view type,
                                         std::string_view where);

}  // namespace quatrain
