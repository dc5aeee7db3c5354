// NumPy's .npy, version 1.0: FP32 arrays for other programs to read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/file.h"

namespace quatrain {

/// Writes a C-ordered little-endian FP32 array of this shape, atomically. `values` fill the shape exactly.
void write_npy(const fs::path& path, const std::vector<int64_t>& shape, std::span<const float> values);

}  // namespace quatrain
