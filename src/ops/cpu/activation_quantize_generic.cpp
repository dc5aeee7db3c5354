#include <algorithm>
#include <cmath>

#include "base/number_format.h"
#include "ops/cpu/activation_quantize_row.h"

namespace quatrain::ops {

bool quantize_row_generic(const QuantizeRowArguments& row) {
  for (int64_t first = 0, g = 0; first < row.width; first += row.group, ++g) {
    const float* x = row.x + first;
    const int64_t count = std::min(row.group, row.width - first);
    for (int64_t i = 0; i < count; ++i)
      if (!std::isfinite(x[i])) return false;
    const QuantizedGroup group = quantize_group(x, count, row.bits, row.symmetric, row.group);
    for (int64_t i = 0; i < count; ++i) row.codes[first + i] = quantize_value(x[i], group, row.bits);
    row.scale[g] = group.scale;
    row.zero[g] = static_cast<int16_t>(group.zero);
  }
  return true;
}

}  // namespace quatrain::ops
