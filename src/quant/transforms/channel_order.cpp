#include "quant/transforms/channel_order.h"

namespace quatrain {

torch::Tensor energy_order(const torch::Tensor& energy) {
  return torch::argsort(energy, true, -1, true);
}

torch::Tensor value_order(const torch::Tensor& energy, const ModelConfig& config) {
  const int64_t shared = config.heads / config.kv_heads, dim = config.head_dim;
  const torch::Tensor by_head = energy.reshape({config.kv_heads, shared, dim}).sum(1);
  const torch::Tensor inside = energy_order(by_head).repeat_interleave(shared, 0);  // [heads, dim]
  return (inside + torch::arange(config.heads, energy.options().dtype(torch::kLong)).unsqueeze(1) * dim)
      .reshape({-1});
}

void permute_values(DecoderLayer& layer, const ModelConfig& config, const torch::Tensor& order) {
  const int64_t shared = config.heads / config.kv_heads, dim = config.head_dim;
  const torch::Tensor inside = order.reshape({config.kv_heads, shared, dim}).select(1, 0) % dim;
  const torch::Tensor rows =
      (inside + torch::arange(config.kv_heads, order.options()).unsqueeze(1) * dim).reshape({-1});
  layer.v.weight = layer.v.weight.index_select(0, rows);
  if (layer.v.bias.defined()) layer.v.bias = layer.v.bias.index_select(0, rows);
  layer.o.weight = layer.o.weight.index_select(1, order);
}

}  // namespace quatrain
