// What the quantised inputs of one product leave behind, for GPTQ and for the correction of its target.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace quatrain {

/// x^T x of a sample, FP32, its upper triangle in blocks of 192 columns (half the work); the rest is zero.
torch::Tensor upper_gram(const torch::Tensor& x);

/// The inputs X [tokens, in] of a product and the outputs that they should give: sums over tokens, FP32
/// within a sample, FP64 over samples.
class InputStatistics {
 public:
  /// upper_gram() of a sample's X.
  void add(const torch::Tensor& gram, int64_t tokens) {
    accumulate(hessian_, gram);
    tokens_ += tokens;
  }
  /// Y^T X of another matrix Y [tokens, n].
  void add_cross(const torch::Tensor& product) { accumulate(cross_, product); }

  /// X^T X / tokens, FP64 [in, in].
  torch::Tensor hessian() const;
  /// Y^T X / tokens, FP64 [n, in].
  torch::Tensor cross() const { return cross_ / static_cast<double>(tokens_); }

 private:
  static void accumulate(torch::Tensor& sum, const torch::Tensor& part);

  torch::Tensor hessian_, cross_;
  int64_t tokens_ = 0;
};

}  // namespace quatrain
