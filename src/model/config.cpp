#include "model/config.h"

#include <cmath>

#include "base/error.h"
#include "model/architecture.h"

namespace quatrain {
namespace {

// Under these a matrix has at most 2^44 weights and the whole model fewer than 2^63.
constexpr int64_t kMaxWidth = int64_t{1} << 22;
constexpr int64_t kMaxExpertBlocks = int64_t{1}
                                     << 17;  // experts times layers: 13 times the largest model seen
constexpr int64_t kMaxVocabulary = int64_t{1} << 30;

void check_rope(const RopeConfig& rope, int64_t head_dim, std::string_view where) {
  const auto rotated = static_cast<int64_t>(static_cast<double>(head_dim) * rope.partial);
  require(rotated >= 2 && rotated % 2 == 0,
          "{}: RoPE turns {} of head_dim {} columns; it needs an even number of at least 2", where, rotated,
          head_dim);
  require(rope.theta >= 1 && std::isfinite(rope.theta), "{}: field \"rope_theta\" must be at least 1, not {}",
          where, rope.theta);
  require(rope.factor > 0 && std::isfinite(rope.factor), "{}: RoPE needs a positive factor", where);
  require(rope.scaling != RopeConfig::Scaling::Divisors ||
              static_cast<int64_t>(rope.divisors.size()) == rotated / 2,
          "{}: RoPE has {} divisors for {} frequencies", where, rope.divisors.size(), rotated / 2);
}

}  // namespace

void ModelConfig::validate(std::string_view where) const {
  const auto in_range = [&](const char* field, int64_t value, int64_t low, int64_t high) {
    require(value >= low && value <= high, "{}: field \"{}\" must be {} to {}, not {}", where, field, low,
            high, value);
  };
  in_range("vocab_size", vocabulary, 1, kMaxVocabulary);
  in_range("hidden_size", hidden, 1, kMaxWidth);
  in_range("intermediate_size", intermediate, 1, kMaxWidth);
  in_range("num_hidden_layers", layers, 1, 1024);
  in_range("num_attention_heads", heads, 1, 1 << 16);
  in_range("num_key_value_heads", kv_heads, 1, heads);
  in_range("head_dim", head_dim, 2, 1 << 14);
  in_range("head_dim times num_attention_heads", query_width(), 2, kMaxWidth);
  in_range("max_position_embeddings", max_positions, 1, int64_t{1} << 31);
  require(heads % kv_heads == 0, "{}: num_attention_heads {} is not a multiple of num_key_value_heads {}",
          where, heads, kv_heads);
  require(norm_epsilon > 0 && norm_epsilon < 1, "{}: field \"rms_norm_eps\" must lie between 0 and 1, not {}",
          where, norm_epsilon);
  require(std::isfinite(attention_scale) && attention_scale > 0 && std::isfinite(embedding_scale) &&
              std::isfinite(norm_offset),
          "{}: the attention scale, embedding scale or norm offset is out of range", where);
  require(static_cast<int64_t>(sliding_window.size()) == layers, "{}: {} sliding windows for {} layers",
          where, sliding_window.size(), layers);
  for (const int64_t window : sliding_window) in_range("sliding_window", window, 0, int64_t{1} << 31);
  check_rope(rope, head_dim, where);
  check_rope(local_rope, head_dim, where);
  if (moe_layer.empty()) return;
  require(static_cast<int64_t>(moe_layer.size()) == layers, "{}: {} MoE flags for {} layers", where,
          moe_layer.size(), layers);
  in_range("num_experts", moe.experts, 1, 1 << 12);
  in_range("num_experts_per_tok", moe.experts_per_token, 1, moe.experts);
  in_range("moe_intermediate_size", moe.intermediate, 1, kMaxWidth);
  in_range("num_experts times num_hidden_layers", moe.experts * layers, 1, kMaxExpertBlocks);
}

std::vector<LinearShape> linears_of_layer(const ModelConfig& config, int64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::string attention = prefix + "self_attn.";
  std::vector<LinearShape> linears = {
      {attention + "q_proj", config.query_width(), config.hidden, config.qkv_bias},
      {attention + "k_proj", config.kv_width(), config.hidden, config.qkv_bias},
      {attention + "v_proj", config.kv_width(), config.hidden, config.qkv_bias},
      {attention + "o_proj", config.hidden, config.query_width(), config.output_bias}};
  const auto add_mlp = [&](const std::string& mlp, int64_t width) {
    linears.push_back({mlp + "gate_proj", width, config.hidden, config.mlp_bias});
    linears.push_back({mlp + "up_proj", width, config.hidden, config.mlp_bias});
    linears.push_back({mlp + "down_proj", config.hidden, width, config.mlp_bias});
  };
  if (!config.is_moe(layer)) {
    add_mlp(prefix + "mlp.", config.intermediate);
  } else {
    for (int64_t expert = 0; expert < config.moe.experts; ++expert)
      add_mlp(fmt::format("{}mlp.experts.{}.", prefix, expert), config.moe.intermediate);
  }
  return linears;
}

std::vector<PlainShape> plain_tensors_of_layer(const ModelConfig& config, int64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  std::vector<PlainShape> tensors = {{prefix + "input_layernorm.weight", {config.hidden}},
                                     {prefix + "post_attention_layernorm.weight", {config.hidden}}};
  if (config.sandwich_norms) {
    tensors.push_back({prefix + "pre_feedforward_layernorm.weight", {config.hidden}});
    tensors.push_back({prefix + "post_feedforward_layernorm.weight", {config.hidden}});
  }
  if (config.qk_norm) {
    tensors.push_back({prefix + "self_attn.q_norm.weight", {config.head_dim}});
    tensors.push_back({prefix + "self_attn.k_norm.weight", {config.head_dim}});
  }
  if (config.is_moe(layer))
    tensors.push_back({prefix + "mlp.gate.weight", {config.moe.experts, config.hidden}});
  return tensors;
}

std::vector<PlainShape> plain_tensors_of_model(const ModelConfig& config) {
  std::vector<PlainShape> tensors = {{"model.embed_tokens.weight", {config.vocabulary, config.hidden}},
                                     {"model.norm.weight", {config.hidden}}};
  if (!config.tied_embeddings) tensors.push_back({"lm_head.weight", {config.vocabulary, config.hidden}});
  return tensors;
}

int64_t parameter_count(const ModelConfig& config) {
  int64_t count = 0;
  const auto add_plain = [&](const std::vector<PlainShape>& tensors) {
    for (const PlainShape& tensor : tensors) {
      int64_t elements = 1;
      for (const int64_t size : tensor.shape) elements *= size;
      count += elements;
    }
  };
  add_plain(plain_tensors_of_model(config));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    add_plain(plain_tensors_of_layer(config, layer));
    for (const LinearShape& linear : linears_of_layer(config, layer))
      count += linear.out * linear.in + (linear.bias ? linear.out : 0);
  }
  return count;
}

}  // namespace quatrain
