#include <algorithm>

#include "ops/cpu/hadamard_row.h"

namespace quatrain::ops {

void hadamard_row_generic(const HadamardRowArguments& h, float* x) {
  const int64_t order = h.base * h.inner;
  for (int64_t i = 0; i < h.blocks * order; ++i) x[i] *= h.signs[i];
  for (int64_t distance = 1; distance < h.inner; distance *= 2)
    for (int64_t first = 0; first < h.blocks * order; first += 2 * distance)
      for (int64_t i = first; i < first + distance; ++i) {
        const float a = x[i], b = x[i + distance];
        x[i] = a + b;
        x[i + distance] = a - b;
      }
  if (h.base == 1) return;
  for (int64_t block = 0; block < h.blocks; ++block, x += order) {
    for (int64_t j = 0; j < h.base; ++j)
      for (int64_t k = 0; k < h.inner; ++k) {
        float sum = 0;
        for (int64_t i = 0; i < h.base; ++i) sum += h.matrix[i * h.base + j] * x[i * h.inner + k];
        h.scratch[j * h.inner + k] = sum;
      }
    std::copy_n(h.scratch, order, x);
  }
}

}  // namespace quatrain::ops
