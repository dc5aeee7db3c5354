// The largest of many values: greedy sampling over a vocabulary.
#pragma once

#include <cstdint>
#include <span>

namespace quatrain::ops {

/// Position of the first largest value, or of the first NaN where there is one. `values` is not empty;
/// infinities are ordinary values.
int64_t argmax(std::span<const float> values);

}  // namespace quatrain::ops
