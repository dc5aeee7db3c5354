#include "quant/layer_moments.h"

namespace quatrain {
namespace {

constexpr int64_t kPieces = 64;

void add(torch::Tensor& sum, const torch::Tensor& part) {
  sum = sum.defined() ? sum + part : part;
}

// Of keys [sequences, tokens, kv_heads, d], that of the largest |value| of each sequence and head.
torch::Tensor largest_keys(const torch::Tensor& keys) {
  const torch::Tensor token = keys.abs().amax(3).argmax(1, true).unsqueeze(3);  // [sequences, 1, kv_heads, 1]
  return keys.gather(1, token.expand({-1, -1, -1, keys.size(3)})).squeeze(1);
}

}  // namespace

torch::Tensor block_moments(const torch::Tensor& x, int64_t n) {
  // On a GPU in pieces: a few small products of many rows each would leave most of it idle.
  const int64_t pieces = x.is_cpu() || x.size(0) % kPieces != 0 ? 1 : kPieces, blocks = x.size(1) / n;
  const torch::Tensor rows = x.reshape({pieces, -1, blocks, n}).transpose(1, 2).flatten(0, 1);
  return torch::bmm(rows.transpose(1, 2), rows).reshape({pieces, blocks, n, n}).sum(0, false, torch::kDouble);
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
  std::vector<torch::Tensor> largest;
  work.each(hidden.size(), [&](size_t s, const InOrder& in_order) {
    const torch::Tensor& x = hidden[s];
    // Inputs are not quantised yet: what looks at them here is the check that they are finite.
    LayerMoments part;  // of this sample
    LayerHooks hooks;
    hooks.attention_input = [&](const torch::Tensor& queries, const torch::Tensor& keys) {
      part.keys = block_moments(keys.flatten(1), dim);
      part.key_sum = keys.sum(0, false, torch::kDouble);
      part.largest_keys = largest_keys(
          keys.reshape({layer.sequences_in(keys.size(0)), -1, config.kv_heads, config.head_dim}));
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
    std::vector<torch::Tensor> inner, magnitudes;  // inputs of down and their largest, by expert
    torch::Tensor mlp_out;
    const auto run_mlp = [&](const DecoderLayer::Mlp& mlp, const torch::Tensor& rows) {
      inner.push_back(mlp.down.quantize_input(layer.gated(mlp.gate.product(rows), mlp.up.product(rows))));
      if (down_block > 0) add(part.down, block_moments(inner.back(), down_block));
      magnitudes.push_back(rows.size(0) > 0 ? inner.back().abs().amax(0)
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
    part.down_largest = torch::stack(magnitudes);
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
      largest.push_back(part.largest_keys);
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
  moments.largest_keys = torch::cat(largest);
  return pass;
}

}  // namespace quatrain
