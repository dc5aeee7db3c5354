// Products with weights whose codes are fixed and whose scales are trained.
#pragma once

#include <torch/torch.h>

#include <cstdint>

#include "base/number_format.h"

namespace quatrain {

/// What products with quantised weights run in: BF16 where the processor multiplies it (a weight of 4 or 8
/// bits loses less to BF16's rounding than it has lost already), else FP32, which on a GPU is fast enough.
torch::ScalarType fastest_product_type(torch::Device device);

/// W = codes * scale with a scale for every `group` columns of a row.
struct ScaledWeight {
  torch::Tensor codes;  // int8 [out, in]
  int64_t group;
  bool half;               // scales are stored in FP16: those of groups, not those of rows
  torch::ScalarType type;  // of the products: FP32 or BF16

  ScaledWeight(const NibblePlanes& planes, torch::ScalarType type, torch::Device device = torch::kCPU);

  /// W [out, in] in the type of the products. scale: FP32 [out, groups].
  torch::Tensor dense(const torch::Tensor& scale) const;
  /// x W^T, FP32 [tokens, out], differentiable in x (FP32 [tokens, in]) and in `scale`; `dense`: what
  /// dense(scale) has returned.
  torch::Tensor product(const torch::Tensor& x, const torch::Tensor& scale, const torch::Tensor& dense) const;
};

/// What dense() and the gradient of `scale` are made of on other devices than the CPU: codes * scale, and of
/// every group the sum of slope * code, FP32 [out, groups].
torch::Tensor expanded(const torch::Tensor& codes, const torch::Tensor& scale, int64_t group);
torch::Tensor group_sums(const torch::Tensor& slope, const torch::Tensor& codes, int64_t group);

}  // namespace quatrain
