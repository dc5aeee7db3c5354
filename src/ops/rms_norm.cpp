#include "ops/rms_norm.h"

#include <cmath>

#include "ops/cpu/rms_norm.h"
#include "ops/cpu/select.h"

namespace quatrain::ops {

int64_t rms_norm(const float* x, int64_t rows, int64_t x_stride, int64_t width, const float* weight,
                 float epsilon, float* y, int64_t y_stride) {
  const RmsNormKernel& kernel =
      select_kernel(active_isa(), rms_norm_kernel_generic, rms_norm_kernel_avx2, rms_norm_kernel_avx512);
  int64_t bad = -1;
  for (int64_t row = 0; row < rows; ++row, x += x_stride, y += y_stride) {
    const float mean = kernel.square_sum(x, width) / static_cast<float>(width);
    if (!std::isfinite(mean) && bad < 0) bad = row;
    kernel.scale(x, width, 1.0f / std::sqrt(mean + epsilon), weight, y);
  }
  return bad;
}

}  // namespace quatrain::ops
