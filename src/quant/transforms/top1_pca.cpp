#include "quant/transforms/top1_pca.h"

#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "quant/transforms/balance.h"

namespace quatrain {

torch::Tensor offset_grouping(const torch::Tensor& magnitudes, int64_t group, bool zigzag) {
  const int64_t width = magnitudes.size(0);
  require(group > 0 && width % group == 0, "groups of {} do not divide {} channels", group, width);
  const int64_t groups = width / group;
  const torch::Tensor descending = torch::argsort(magnitudes, true, 0, true);
  const torch::Tensor leaders = descending.slice(0, 0, groups).unsqueeze(1);
  const torch::Tensor ascending = descending.slice(0, groups).flip(0);
  const torch::Tensor others =
      zigzag ? ascending.reshape({group - 1, groups}).t() : ascending.reshape({groups, group - 1});
  return torch::cat({leaders, others}, 1).reshape({width});
}

torch::Tensor offset_pca_rotation(const torch::Tensor& moments, const torch::Tensor& rows, int64_t group,
                                  uint64_t seed, const OffsetRotation& options) {
  torch::Tensor damped = moments.clone();
  const int64_t width = damped.size(0);
  damped.diagonal().add_(0.01 * damped.diagonal().mean());
  const auto [values, vectors] = torch::linalg_eigh(damped);
  const torch::Tensor basis = vectors.flip(1);
  const torch::Tensor key = rows.defined() ? rows.to(torch::kDouble).matmul(basis).abs().amax(0)
                                           : values.flip(0).clamp_min(0).sqrt();
  const torch::Tensor order = offset_grouping(key, group, options.zigzag);
  std::vector<torch::Tensor> blocks;
  for (int64_t g = 0; g < width / group; ++g)
    blocks.push_back(
        offset_rotation(group, SplitMix64(seed + static_cast<uint64_t>(g)).next(), options.hadamard));
  return basis.index_select(1, order).matmul(torch::block_diag(blocks).to(basis.device()));
}

torch::Tensor top1_pca_rotation(const torch::Tensor& rows, int64_t group, uint64_t seed,
                                const OffsetRotation& options) {
  const torch::Tensor x = rows.to(torch::kDouble);
  return offset_pca_rotation(x.t().matmul(x) / x.size(0), x, group, seed, options);
}

torch::Tensor top1_token(const torch::Tensor& x) {
  return x.index_select(0, x.abs().amax(1).argmax().reshape({1}));
}

}  // namespace quatrain
