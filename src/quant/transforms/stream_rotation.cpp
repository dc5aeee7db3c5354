#include "quant/transforms/stream_rotation.h"

#include <algorithm>

#include "base/error.h"
#include "base/progress.h"
#include "quant/policy.h"
#include "quant/reference/device.h"
#include "quant/transforms/channel_order.h"
#include "quant/transforms/merged_source.h"
#include "quant/transforms/rotation.h"
#include "quant/transforms/top1_pca.h"

namespace quatrain {
namespace {

using InputVisitor = std::function<void(const torch::Tensor& input)>;

// The inputs of q, k, v and of gate, up in every layer, gains folded into the weights, of as many samples as
// give one row a channel of the stream when each input leaves one.
void visit_inputs(const std::shared_ptr<const Checkpoint>& checkpoint,
                  const std::vector<std::vector<int32_t>>& samples, const SampleWork& work,
                  const InputVisitor& visit) {
  const auto source = merge_rotation(checkpoint_weight_source(checkpoint, work.device()), {});
  const ModelConfig& config = source->config();
  const int64_t wanted = (config.hidden + 2 * config.layers - 1) / (2 * config.layers);
  const auto count = static_cast<size_t>(std::min<int64_t>(wanted, std::ssize(samples)));
  std::vector<torch::Tensor> hidden;
  {
    const torch::Tensor embedding = source->embedding();
    for (size_t s = 0; s < count; ++s)
      hidden.push_back(embedded(embedding, samples[s]) * config.embedding_scale);
  }
  Progress progress("layers of the residual rotation", config.layers);
  for (int64_t index = 0; index < config.layers; ++index) {
    const DecoderLayer layer(*source, index);
    work.each(count, [&](size_t s, const InOrder& in_order) {
      std::vector<torch::Tensor> inputs;
      LayerHooks hooks;
      hooks.linear_input = [&](Site site, int64_t, const torch::Tensor& input) {
        if (site == Site::Qkv || site == Site::GateUp) inputs.push_back(input);
      };
      hidden[s] = layer.forward(hidden[s], hooks);
      in_order([&] {
        for (const torch::Tensor& input : inputs) visit(input);
      });
    });
    progress.update(index + 1);
  }
}

}  // namespace

torch::Tensor stream_rotation(const std::shared_ptr<const Checkpoint>& checkpoint, const Recipe& recipe,
                              const std::vector<std::vector<int32_t>>& samples,
                              std::vector<std::string>& notes, const SampleWork& work) {
  const Recipe::Transforms& transform = recipe.transform;
  const int64_t width = checkpoint->config().hidden;
  const uint64_t seed = transform_seed(recipe, 0, "residual");
  const auto sums = torch::TensorOptions(torch::kDouble).device(work.device());
  if (recipe.residual.sort) {
    torch::Tensor energy = torch::zeros({width}, sums);
    visit_inputs(checkpoint, samples, work, [&](const torch::Tensor& x) {
      const torch::Tensor squares = x.square().sum(0, false, torch::kDouble);
      energy += squares / squares.sum().clamp_min(1e-300);  // every site counts alike
    });
    return torch::eye(width, torch::kDouble).index_select(1, energy_order(energy.cpu()));
  }
  if (transform.residual == "none") return {};
  if (transform.residual == "hadamard") {
    const int64_t order = hadamard_order(width);
    if (order != width)
      notes.push_back(fmt::format(
          "width {}: no Hadamard matrix of this order is known, the residual rotation has blocks of {}",
          width, order));
    return hadamard_rotation(width, order, seed);
  }
  const int64_t group = fitting_group(width, transform.residual_group);
  if (group != transform.residual_group)
    notes.push_back(fmt::format("width {}: residual groups of {} do not divide it, {} are used", width,
                                transform.residual_group, group));
  const OffsetRotation options{transform.grouping == "zigzag", transform.rotation == "hadamard"};
  if (transform.pca == "all") {
    torch::Tensor moments = torch::zeros({width, width}, sums);
    int64_t tokens = 0;
    visit_inputs(checkpoint, samples, work, [&](const torch::Tensor& x) {
      moments += x.t().matmul(x);
      tokens += x.size(0);
    });
    return offset_pca_rotation(moments / static_cast<double>(tokens), {}, group, seed, options).cpu();
  }
  std::vector<torch::Tensor> rows;
  visit_inputs(checkpoint, samples, work, [&](const torch::Tensor& x) { rows.push_back(top1_token(x)); });
  return top1_pca_rotation(torch::cat(rows), group, seed, options).cpu();
}

}  // namespace quatrain
