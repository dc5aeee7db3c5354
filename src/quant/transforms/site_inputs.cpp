#include "quant/transforms/site_inputs.h"

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "quant/transforms/block.h"

namespace quatrain {
namespace {

void add_to(torch::Tensor& sum, const torch::Tensor& part) {
  sum = sum.defined() ? sum + part : part;
}

}  // namespace

void LayerInputs::add(Site site, const torch::Tensor& x) {
  if (x.size(0) == 0) return;  // an expert that no token of the sample reaches
  SiteInput& input = at(site);
  const torch::Tensor largest = x.abs().amax(0);
  input.largest = input.largest.defined() ? torch::maximum(input.largest, largest) : largest;
  if (mixed_[static_cast<size_t>(site)])
    add_to(input.moments, x.t().matmul(x).to(torch::kDouble));
  else
    add_to(input.squares, x.square().sum(0, false, torch::kDouble));
  input.tokens += x.size(0);
  if (rows_ == 0) return;
  // The same tokens at every site.
  SplitMix64 random(seed_ + static_cast<uint64_t>(input.rows.size()));
  std::vector<int64_t> places;
  for (int64_t i = 0; i < std::min(rows_, x.size(0)); ++i)
    places.push_back(static_cast<int64_t>(random.below(static_cast<uint64_t>(x.size(0)))));
  input.rows.push_back(x.index_select(0, torch::tensor(places, torch::kLong).to(x.device())));
}

void LayerInputs::divide(Site site, const torch::Tensor& scale) {
  SiteInput& input = at(site);
  const torch::Tensor wide = scale.to(torch::kDouble);
  input.largest = input.largest / scale;
  if (input.squares.defined()) input.squares = input.squares / wide.square();
  if (input.moments.defined()) input.moments = input.moments / wide / wide.unsqueeze(1);
  for (torch::Tensor& x : input.rows) x = x / scale;
}

void LayerInputs::turn(Site site, const torch::Tensor& blocks) {
  if (!blocks.defined()) return;
  SiteInput& input = at(site);
  require(input.moments.defined(), "inputs were turned without their moments");
  const torch::Tensor wide = blocks.to(input.moments.device(), torch::kDouble);
  input.moments = apply_blocks(apply_blocks(input.moments, wide).t(), wide);
  for (torch::Tensor& x : input.rows) x = apply_blocks(x, wide.to(torch::kFloat));
  input.largest = torch::Tensor();
}

void LayerInputs::permute(Site site, const torch::Tensor& order) {
  SiteInput& input = at(site);
  for (torch::Tensor* vector : {&input.largest, &input.squares})
    if (vector->defined()) *vector = vector->index_select(0, order);
  if (input.moments.defined()) input.moments = input.moments.index_select(0, order).index_select(1, order);
  for (torch::Tensor& x : input.rows) x = x.index_select(1, order);
}

torch::Tensor LayerInputs::mean_squares(Site site) const {
  return 0.5 * sensitivity(site);
}

torch::Tensor LayerInputs::sensitivity(Site site) const {
  const SiteInput& input = of(site);
  const torch::Tensor squares = input.moments.defined() ? input.moments.diagonal() : input.squares;
  return squares * (2.0 / static_cast<double>(std::max<int64_t>(input.tokens, 1)));
}

}  // namespace quatrain
