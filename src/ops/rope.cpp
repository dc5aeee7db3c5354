#include "ops/rope.h"

#include <cmath>

#include "ops/cpu/rope.h"
#include "ops/cpu/select.h"

namespace quatrain::ops {

void rope_factors(int64_t position, std::span<const float> inverse_frequencies, float scale, float* cosine,
                  float* sine) {
  for (size_t i = 0; i < inverse_frequencies.size(); ++i) {
    const double angle = static_cast<float>(position) * inverse_frequencies[i];
    cosine[i] = static_cast<float>(std::cos(angle)) * scale;
    sine[i] = static_cast<float>(std::sin(angle)) * scale;
  }
}

void rope(float* x, int64_t heads, int64_t head_dim, int64_t half, const float* cosine, const float* sine) {
  const RopeKernel kernel =
      select_kernel(active_isa(), rope_kernel_generic, rope_kernel_avx2, rope_kernel_avx512);
  for (int64_t head = 0; head < heads; ++head, x += head_dim) kernel(x, x + half, half, cosine, sine);
}

}  // namespace quatrain::ops
