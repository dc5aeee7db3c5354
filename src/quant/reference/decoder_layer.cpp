#include "quant/reference/decoder_layer.h"

#include <algorithm>

#include "base/error.h"
#include "quant/reference/fake_quantize.h"
#include "quant/reference/operations.h"
#include "quant/reference/row_math.h"
#include "quant/transforms/block.h"

namespace quatrain {
namespace {

// Queries that meet the keys at once: bounds the scores at kQueryChunk * tokens a head, so that those of a KV
// head stay in a core's cache between the two products that they lie between.
constexpr int64_t kQueryChunk = 128;

// Whether x meets torch operations instead of loops over plain pointers: they have gradients, and run on any
// device.
bool as_operations(const torch::Tensor& x) {
  return x.requires_grad() || !x.is_cpu();
}

}  // namespace

torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, const ModelConfig& config) {
  const torch::Tensor values = x.contiguous(), gain = (weight + config.norm_offset).contiguous();
  if (as_operations(x)) return operations::rms_norm(x, gain, config.norm_epsilon);
  torch::Tensor out = torch::empty_like(values);
  const int64_t width = gain.size(0);
  rms_norm_rows(values.data_ptr<float>(), gain.data_ptr<float>(), values.numel() / width, width,
                config.norm_epsilon, out.data_ptr<float>());
  return out;
}

DecoderLayer::DecoderLayer(const WeightSource& source, int64_t index)
    : config_(source.config()), index_(index) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const auto norm = [&](const char* name) { return source.plain(prefix + name + ".weight"); };
  input_norm = norm("input_layernorm");
  post_attention_norm = norm("post_attention_layernorm");
  if (config_.sandwich_norms) {
    pre_mlp_norm = norm("pre_feedforward_layernorm");
    post_mlp_norm = norm("post_feedforward_layernorm");
  }
  if (config_.qk_norm) {
    q_norm = norm("self_attn.q_norm");
    k_norm = norm("self_attn.k_norm");
  }
  q = source.linear(prefix + "self_attn.q_proj");
  k = source.linear(prefix + "self_attn.k_proj");
  v = source.linear(prefix + "self_attn.v_proj");
  o = source.linear(prefix + "self_attn.o_proj");
  const auto add_mlp = [&](const std::string& at) {
    mlps.push_back(
        {source.linear(at + "gate_proj"), source.linear(at + "up_proj"), source.linear(at + "down_proj")});
  };
  if (config_.is_moe(index)) {
    router = norm("mlp.gate");
    for (int64_t expert = 0; expert < config_.moe.experts; ++expert)
      add_mlp(fmt::format("{}mlp.experts.{}.", prefix, expert));
  } else {
    add_mlp(prefix + "mlp.");
  }
  kv = source.kv(index);
  key_transform = source.key_transform(index);
}

torch::Tensor DecoderLayer::forward(const torch::Tensor& hidden, const LayerHooks& hooks) const {
  const torch::Tensor middle = hidden + attention_update(attention(attention_input(hidden), hooks));
  const torch::Tensor x = mlp_input(middle);
  return middle + mlp_update(router.defined() ? moe(x, hooks) : mlp(mlps[0], 0, x, hooks));
}

torch::Tensor DecoderLayer::attention_update(const torch::Tensor& o_out) const {
  return config_.sandwich_norms ? rms_norm(o_out, post_attention_norm, config_) : o_out;
}

torch::Tensor DecoderLayer::mlp_update(const torch::Tensor& down_out) const {
  return config_.sandwich_norms ? rms_norm(down_out, post_mlp_norm, config_) : down_out;
}

torch::Tensor DecoderLayer::attention_input(const torch::Tensor& hidden) const {
  return rms_norm(hidden, input_norm, config_);
}

torch::Tensor DecoderLayer::mlp_input(const torch::Tensor& middle) const {
  return rms_norm(middle, config_.sandwich_norms ? pre_mlp_norm : post_attention_norm, config_);
}

torch::Tensor DecoderLayer::attention(const torch::Tensor& x, const LayerHooks& hooks) const {
  if (hooks.linear_input) hooks.linear_input(Site::Qkv, 0, x);
  const torch::Tensor input = q.quantize_input(x);
  // q, k and v share their input; policies differ only where a recipe says so.
  const auto project = [&](const ReferenceLinear& linear) {
    return linear.product(linear.same_input(q) ? input : linear.quantize_input(x));
  };
  const torch::Tensor mixed = mix(project(q), project(k), project(v), hooks);
  if (hooks.linear_input) hooks.linear_input(Site::Output, 0, mixed);
  return o.product(o.quantize_input(mixed));
}

torch::Tensor DecoderLayer::mix(const torch::Tensor& q_out, const torch::Tensor& k_out,
                                const torch::Tensor& v_out, const LayerHooks& hooks) const {
  const auto heads = [&](const torch::Tensor& x) { return x.reshape({x.size(0), -1, config_.head_dim}); };
  torch::Tensor queries = heads(q_out), keys = heads(k_out), values = heads(v_out);
  if (config_.qk_norm) {
    queries = rms_norm(queries, q_norm, config_);
    keys = rms_norm(keys, k_norm, config_);
  }
  queries = rotate(queries);
  keys = rotate(keys);
  if (hooks.attention_input) hooks.attention_input(queries, keys);
  if (key_transform.key.defined()) {
    const int64_t shared = config_.heads / config_.kv_heads;
    queries = apply_blocks(queries.flatten(1), key_transform.query.repeat_interleave(shared, 0))
                  .reshape(queries.sizes());
    keys = apply_blocks((keys - key_transform.mean).flatten(1), key_transform.key).reshape(keys.sizes());
  }
  keys = fake_quantize_kv(keys, kv, fmt::format("layer {} keys", index_));
  values = fake_quantize_kv(values, kv, fmt::format("layer {} values", index_));
  return attend(queries, keys, values);
}

// The first head_dim * partial columns turn, in pairs (i, i + half).
torch::Tensor DecoderLayer::rotate(const torch::Tensor& x) const {
  const RopeConfig& rope = config_.rope_of(index_);
  const std::vector<float> frequencies = rope.inverse_frequencies(config_.head_dim);
  const auto half = static_cast<int64_t>(frequencies.size());
  const torch::Tensor inverse =
      torch::tensor(frequencies, torch::kFloat).to(x.device(), /*non_blocking=*/true);
  const int64_t sequences = sequences_in(x.size(0));
  const torch::Tensor angle = torch::arange(x.size(0) / sequences, inverse.options()).unsqueeze(1) *
                              inverse.unsqueeze(0);  // [tokens of a sequence, half]
  const torch::Tensor cosine = (angle.cos() * rope.attention_scale()).repeat({sequences, 1});
  const torch::Tensor sine = (angle.sin() * rope.attention_scale()).repeat({sequences, 1});
  if (as_operations(x)) return operations::rotate(x, cosine, sine);
  const torch::Tensor values = x.contiguous();
  torch::Tensor out = torch::empty_like(values);
  rotate_rows(values.data_ptr<float>(), cosine.data_ptr<float>(), sine.data_ptr<float>(), x.size(0),
              x.size(1), x.size(2), half, out.data_ptr<float>());
  return out;
}

torch::Tensor DecoderLayer::attend(const torch::Tensor& queries, const torch::Tensor& keys,
                                   const torch::Tensor& values) const {
  const int64_t tokens = queries.size(0), shared = config_.heads / config_.kv_heads, dim = config_.head_dim;
  const int64_t window = config_.sliding_window[static_cast<size_t>(index_)];
  const torch::Tensor scaled = queries * config_.attention_scale;
  const int64_t sequences = sequences_in(tokens);
  if (as_operations(queries) || sequences > 1)
    return operations::attend(scaled, keys, values, window, sequences);
  const torch::Tensor grouped = scaled.reshape({tokens, config_.kv_heads, shared, dim});
  torch::Tensor mixed = torch::empty({tokens, config_.kv_heads, shared, dim}, torch::kFloat);
  for (int64_t head = 0; head < config_.kv_heads; ++head) {
    const torch::Tensor k = keys.select(1, head).t(), v = values.select(1, head);
    for (int64_t begin = 0; begin < tokens; begin += kQueryChunk) {
      const int64_t end = std::min(begin + kQueryChunk, tokens);
      const int64_t first = window > 0 ? std::max<int64_t>(0, begin - window + 1) : 0;
      const torch::Tensor part = grouped.slice(0, begin, end).select(1, head).reshape({-1, dim});
      const torch::Tensor scores = torch::mm(part, k.slice(1, first, end)).contiguous();
      causal_softmax_rows(scores.data_ptr<float>(), scores.size(0), end - first, begin, first, shared,
                          window);
      mixed.slice(0, begin, end)
          .select(1, head)
          .copy_(torch::mm(scores, v.slice(0, first, end)).reshape({end - begin, shared, dim}));
    }
  }
  return mixed.reshape({tokens, config_.query_width()});
}

torch::Tensor DecoderLayer::gated(const torch::Tensor& gate_out, const torch::Tensor& up_out) const {
  if (config_.activation != Activation::Silu) return torch::gelu(gate_out, "tanh") * up_out;
  if (as_operations(gate_out)) return torch::silu(gate_out) * up_out;
  const torch::Tensor gate = gate_out.contiguous(), up = up_out.contiguous();
  torch::Tensor out = torch::empty_like(gate);
  silu_product(gate.data_ptr<float>(), up.data_ptr<float>(), out.numel(), out.data_ptr<float>());
  return out;
}

torch::Tensor DecoderLayer::mlp(const Mlp& mlp, int64_t expert, const torch::Tensor& x,
                                const LayerHooks& hooks) const {
  if (hooks.linear_input) hooks.linear_input(Site::GateUp, expert, x);
  const torch::Tensor input = mlp.gate.quantize_input(x);
  const torch::Tensor gate = mlp.gate.product(input);
  const torch::Tensor up = mlp.up.product(mlp.up.same_input(mlp.gate) ? input : mlp.up.quantize_input(x));
  const torch::Tensor inner = gated(gate, up);
  if (hooks.linear_input) hooks.linear_input(Site::Down, expert, inner);
  return mlp.down.product(mlp.down.quantize_input(inner));
}

DecoderLayer::Routing DecoderLayer::route(const torch::Tensor& x) const {
  const torch::Tensor probability = torch::softmax(torch::matmul(x, router.t()), -1);
  auto [shares, experts] = probability.topk(config_.moe.experts_per_token, -1);
  if (config_.moe.normalize_top_k) shares = shares / shares.sum(-1, true);
  return {experts, shares};
}

std::pair<torch::Tensor, torch::Tensor> DecoderLayer::Routing::of(int64_t expert) const {
  const torch::Tensor places = (experts == expert).nonzero();  // [n, 2]: token, rank
  const torch::Tensor token = places.select(1, 0), rank = places.select(1, 1);
  return {token, shares.index({token, rank}).unsqueeze(1)};
}

torch::Tensor DecoderLayer::moe(const torch::Tensor& x, const LayerHooks& hooks) const {
  const Routing routing = route(x);
  torch::Tensor out = torch::zeros_like(x);
  for (int64_t expert = 0; expert < config_.moe.experts; ++expert) {
    const auto [tokens, shares] = routing.of(expert);
    if (tokens.size(0) == 0) continue;
    const torch::Tensor result =
        mlp(mlps[static_cast<size_t>(expert)], expert, x.index_select(0, tokens), hooks);
    out.index_add_(0, tokens, result * shares);
  }
  return out;
}

}  // namespace quatrain
