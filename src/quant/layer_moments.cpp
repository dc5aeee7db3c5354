#include "quant/layer_moments.h"

namespace quatrain {
namespace {

void add(torch::Tensor& sum, const torch::Tensor& part) {
  sum = sum.defined() ? sum + part : part;
}

}  // namespace

torch::Tensor block_moments(const torch::Tensor& x, int64_t n) {
  const torch::Tensor blocks = x.reshape({x.size(0), -1, n}).transpose(0, 1);
  return torch::bmm(blocks.transpose(1, 2), blocks).to(torch::kDouble);
}

ExactPass run_exact(const DecoderLayer& layer, const ModelConfig& config,
                    const std::vector<torch::Tensor>& hidden, int64_t input_block, int64_t down_block) {
  ExactPass pass;
  LayerMoments& moments = pass.moments;
  const int64_t dim = config.head_dim, shared = config.heads / config.kv_heads;
  LayerHooks hooks;
  hooks.attention_input = [&](const torch::Tensor& queries, const torch::Tensor& keys) {
    add(moments.keys, block_moments(keys.flatten(1), dim));
    add(moments.key_sum, keys.to(torch::kDouble).sum(0));
    add(moments.queries,
        block_moments(queries.flatten(1), dim).reshape({config.kv_heads, shared, dim, dim}).sum(1));
  };
  const DecoderLayer::Mlp& mlp = layer.mlps[0];
  for (const torch::Tensor& x : hidden) {
    const torch::Tensor input = layer.attention_input(x);
    const torch::Tensor mixed =
        layer.mix(layer.q.product(input), layer.k.product(input), layer.v.product(input), hooks);
    const torch::Tensor middle = x + layer.o.product(mixed);
    const torch::Tensor mlp_input = layer.mlp_input(middle);
    const torch::Tensor inner = layer.gated(mlp.gate.product(mlp_input), mlp.up.product(mlp_input));
    if (input_block > 0) add(moments.attention, block_moments(input, input_block));
    add(moments.mixed, block_moments(mixed, dim));
    if (input_block > 0) add(moments.mlp, block_moments(mlp_input, input_block));
    if (down_block > 0) add(moments.down, block_moments(inner, down_block));
    const torch::Tensor largest = inner.abs().amax(0);
    moments.down_largest =
        moments.down_largest.defined() ? torch::maximum(moments.down_largest, largest) : largest;
    moments.tokens += x.size(0);
    pass.output.push_back(middle + mlp.down.product(inner));
    pass.middle.push_back(middle);
  }
  return pass;
}

}  // namespace quatrain
