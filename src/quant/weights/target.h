// What the quantised weights aim at, when the layers before them are quantised already.
#pragma once

#include <torch/torch.h>

namespace quatrain {

/// The matrix of least ||W~ X_q - Y||^2 + d ||W~ - W||^2 over the tokens of the quantised stream, with
/// d = 0.01 mean(diag H): W~ = (rest W H + pull + d W) (H + d I)^-1. H = X_q^T X_q / N [in, in], and
/// `pull` [out, in] = (Y - rest W X_q)^T X_q / N: what the outputs should hold beside `rest` of the plain
/// product. With rest = 1 and no pull W~ = W. FP64; returns FP32.
torch::Tensor corrected_target(const torch::Tensor& weight, const torch::Tensor& hessian,
                               const torch::Tensor& pull, double rest);

}  // namespace quatrain
