#include "quant/transforms/rotation.h"

#include <cmath>

#include "base/error.h"
#include "base/hadamard_matrix.h"

namespace quatrain {

int64_t hadamard_order(int64_t width) {
  return hadamard_exists(width) ? width : width & -width;
}

torch::Tensor hadamard_rotation(int64_t width, int64_t order, uint64_t seed, bool offset) {
  require(width > 0 && order > 0 && width % order == 0, "Hadamard blocks of {} do not divide the width {}",
          order, width);
  const std::vector<int8_t> entries = hadamard_matrix(order);
  torch::Tensor block = torch::empty({order, order}, torch::kDouble);
  double* out = block.data_ptr<double>();
  for (size_t i = 0; i < entries.size(); ++i) out[i] = entries[i];
  block /= std::sqrt(static_cast<double>(order));
  const std::vector<float> signs = hadamard_signs(width, order, seed, offset);
  torch::Tensor rotation = torch::zeros({width, width}, torch::kDouble);
  for (int64_t begin = 0; begin < width; begin += order)
    rotation.slice(0, begin, begin + order).slice(1, begin, begin + order).copy_(block);
  return rotation * torch::tensor(signs, torch::kDouble).unsqueeze(1);
}

}  // namespace quatrain
