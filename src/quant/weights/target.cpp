#include "quant/weights/target.h"

#include "base/error.h"

namespace quatrain {

torch::Tensor corrected_target(const torch::Tensor& weight, const torch::Tensor& hessian,
                               const torch::Tensor& pull, double rest) {
  const torch::Tensor w = weight.to(torch::kDouble);
  double damping = 0.01 * hessian.diagonal().mean().item<double>();
  if (!(damping > 0)) return weight;  // nothing reached this input
  for (int attempt = 0; attempt < 4; ++attempt, damping *= 10) {
    torch::Tensor damped = hessian.clone();
    damped.diagonal().add_(damping);
    const auto [lower, failed] = torch::linalg_cholesky_ex(damped);
    if (failed.item<int>() != 0) continue;
    const torch::Tensor right = rest * w.matmul(hessian) + pull + damping * w;
    const torch::Tensor solved = torch::cholesky_solve(right.t(), lower).t();
    if (torch::isfinite(solved).all().item<bool>()) return solved.to(torch::kFloat).contiguous();
  }
  return weight;
}

}  // namespace quatrain
