#include "quant/layer_moments.h"

#include "quant/transforms/top1_pca.h"

namespace quatrain {
namespace {

void add(torch::Tensor& sum, const torch::Tensor& part) {
  sum = sum.defined() ? sum + part : part;
}

}  // namespace

torch::Tensor block_moments(const torch::Tensor& x, int64_t n) {
  const torch::Tensor blocks = x.reshape({x.size(0), x.size(1) / n, n}).transpose(0, 1);
  return torch::bmm(blocks.transpose(1, 2), blocks).to(torch::kDouble);
}

ExactPass run_exact(const DecoderLayer& layer, const ModelConfig& config,
                    const std::vector<torch::Tensor>& hidden, int64_t input_block, int64_t down_block,
                    const SiteObserver& observe, const SampleWork& work) {
  ExactPass pass;
  LayerMoments& moments = pass.moments;
  const int64_t dim = config.head_dim, shared = config.heads / config.kv_heads;
  const bool routed = layer.router.defined();
  if (routed) moments.expert_tokens.resize(layer.mlps.size());
  pass.middle = work.rows(hidden, config.hidden);
  pass.output = work.rows(hidden, config.hidden);
  if (config.sandwich_norms) {
    pass.attention_out = work.rows(hidden, config.hidden);
    pass.mlp_out = work.rows(hidden, config.hidden);
  }
  std::vector<torch::Tensor> largest_keys;
  work.each(hidden.size(), [&](size_t s, const InOrder& in_order) {
    const torch::Tensor& x = hidden[s];
    // Inputs are not quantised yet: what looks at them here is the check that they are finite.
    LayerMoments part;  // of this sample
    LayerHooks hooks;
    hooks.attention_input = [&](const torch::Tensor& queries, const torch::Tensor& keys) {
      part.keys = block_moments(keys.flatten(1), dim);
      part.key_sum = keys.sum(0, false, torch::kDouble);
      std::vector<torch::Tensor> by_head;
      for (int64_t head = 0; head < config.kv_heads; ++head)
        by_head.push_back(top1_token(keys.select(1, head)));
      part.largest_keys = torch::stack(by_head, 1);  // [1, kv_heads, d]
      part.queries =
          block_moments(queries.flatten(1), dim).reshape({config.kv_heads, shared, dim, dim}).sum(1);
    };
    const torch::Tensor input = layer.q.quantize_input(layer.attention_input(x));
    const torch::Tensor mixed = layer.o.quantize_input(
        layer.mix(layer.q.product(input), layer.k.product(input), layer.v.product(input), hooks));
    const torch::Tensor attention_out = layer.o.product(mixed);
    if (config.sandwich_norms) pass.attention_out[s].copy_(attention_out);
    const torch::Tensor& middle = pass.middle[s].copy_(x + layer.attention_update(attention_out));
    const torch::Tensor mlp_input = layer.mlps[0].gate.quantize_input(layer.mlp_input(middle));
    if (input_block > 0) part.attention = block_moments(input, input_block);
    part.mixed = block_moments(mixed, dim);
    if (input_block > 0) part.mlp = block_moments(mlp_input, input_block);
    std::vector<torch::Tensor> inner, largest;  // inputs of down, by expert
    torch::Tensor mlp_out;
    const auto run_mlp = [&](const DecoderLayer::Mlp& mlp, const torch::Tensor& rows) {
      inner.push_back(mlp.down.quantize_input(layer.gated(mlp.gate.product(rows), mlp.up.product(rows))));
      if (down_block > 0) add(part.down, block_moments(inner.back(), down_block));
      largest.push_back(rows.size(0) > 0 ? inner.back().abs().amax(0)
                                         : inner.back().new_zeros({inner.back().size(1)}));
      return mlp.down.product(inner.back());
    };
    if (routed) {
      const DecoderLayer::Routing routing = layer.route(mlp_input);
      mlp_out = torch::zeros_like(mlp_input);
      for (size_t expert = 0; expert < layer.mlps.size(); ++expert) {
        const auto [tokens, shares] = routing.of(static_cast<int64_t>(expert));
        mlp_out.index_add_(0, tokens,
                           run_mlp(layer.mlps[expert], mlp_input.index_select(0, tokens)) * shares);
      }
    } else {
      mlp_out = run_mlp(layer.mlps[0], mlp_input);
    }
    part.down_largest = torch::stack(largest);
    if (config.sandwich_norms) pass.mlp_out[s].copy_(mlp_out);
    pass.output[s].copy_(middle + layer.mlp_update(mlp_out));
    in_order([&] {
      if (observe) {
        observe(Site::Qkv, input);
        observe(Site::Output, mixed);
        observe(Site::GateUp, mlp_input);
        for (const torch::Tensor& x_down : inner) observe(Site::Down, x_down);
      }
      if (input_block > 0) add(moments.attention, part.attention);
      if (input_block > 0) add(moments.mlp, part.mlp);
      if (down_block > 0) add(moments.down, part.down);
      add(moments.mixed, part.mixed);
      add(moments.keys, part.keys);
      add(moments.queries, part.queries);
      add(moments.key_sum, part.key_sum);
      largest_keys.push_back(part.largest_keys);
      moments.down_largest = moments.down_largest.defined()
                                 ? torch::maximum(moments.down_largest, part.down_largest)
                                 : part.down_largest;
      moments.tokens += x.size(0);
      for (size_t expert = 0; expert < inner.size(); ++expert) {
        moments.down_tokens += inner[expert].size(0);
        if (routed) moments.expert_tokens[expert] += inner[expert].size(0);
      }
    });
    SampleWork::rest(x);
    SampleWork::rest(pass.middle[s]);
    SampleWork::rest(pass.output[s]);
  });
  moments.largest_keys = torch::cat(largest_keys);
  return pass;
}

}  // namespace quatrain
