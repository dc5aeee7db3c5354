#include <algorithm>
#include <cmath>

#include "ops/cpu/byte_transform.h"

namespace quatrain::ops {

void byte_transform_generic(const ByteMatrix& matrix, const float* offset, int64_t tokens, float* x,
                            int64_t stride) {
  int32_t integers[kMostByteOrder];
  for (int64_t t = 0; t < tokens; ++t, x += stride) {
    float largest = 0;
    bool odd = false;
    for (int64_t k = 0; k < matrix.order; ++k) {
      if (offset != nullptr) x[k] -= offset[k];
      largest = std::max(largest, std::fabs(x[k]));
      odd = odd || !std::isfinite(x[k]);
    }
    const ByteScale scale = byte_scale(odd ? std::numeric_limits<float>::infinity() : largest);
    if (odd) {
      std::fill_n(x, matrix.order, scale.step);
      continue;
    }
    for (int64_t k = 0; k < matrix.order; ++k)
      integers[k] = static_cast<int32_t>(
          std::rint(std::clamp(x[k] * scale.inverse, -kLargestInteger, kLargestInteger)));
    for (int64_t j = 0; j < matrix.order; ++j) {
      int32_t sum = 0;
      for (int64_t k = 0; k < matrix.order; ++k)
        sum += integers[k] * (matrix.codes[(k / 4 * matrix.columns + j) * 4 + k % 4] - 128);
      x[j] = static_cast<float>(sum) * (scale.step * matrix.step[j]);
    }
  }
}

}  // namespace quatrain::ops
