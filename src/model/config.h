// ModelConfig: the shape and the arithmetic of a decoder-only transformer, whatever file described it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace quatrain {

enum class Activation { Silu, GeluTanh };

/// Rotary embedding: angle(position, i) = position * inv_frequency[i], first and second half of a head
/// paired.
struct RopeConfig {
  enum class Scaling { None, Linear, Llama3, Yarn, Divisors };
  double theta = 10000;
  Scaling scaling = Scaling::None;
  double factor = 1;
  double low_frequency_factor = 1, high_frequency_factor = 4;  // Llama3
  double original_positions = 0;                               // Llama3, Yarn
  double beta_fast = 32, beta_slow = 1, attention_factor = 0;  // Yarn; 0: 0.1 ln(factor) + 1
  double mscale = 0, mscale_all_dim = 0;                       // Yarn
  bool truncate = true;                                        // Yarn
  std::vector<double> divisors = {};  // Divisors: what each frequency is divided by (GGUF's rope_freqs)
  double partial = 1;                 // share of head_dim that rotates
  bool operator==(const RopeConfig&) const = default;

  /// [head_dim * partial / 2] frequencies, computed as the reference implementations do (FP32 powers in
  /// FP64).
  std::vector<float> inverse_frequencies(int64_t head_dim) const;
  /// The factor on cos and sin (YaRN); 1 elsewhere.
  float attention_scale() const;
};

struct MoeConfig {
  int64_t experts = 0;  // 0: dense
  int64_t experts_per_token = 0;
  int64_t intermediate = 0;
  bool normalize_top_k = true;  // the chosen experts' probabilities are scaled to sum to 1
  bool operator==(const MoeConfig&) const = default;
};

struct ModelConfig {
  std::string architecture;  // a row of the architecture table: "llama", "qwen2", "gemma3_text"
  int64_t vocabulary = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 0;
  float norm_epsilon = 1e-6f;
  float norm_offset = 0;      // weight + offset multiplies (Gemma: 1, unless the file holds the sum)
  float embedding_scale = 1;  // Gemma: sqrt(hidden), rounded as the reference does
  float attention_scale = 0;  // on q.k; filled in: 1 / sqrt(head_dim) or the config's own
  bool tied_embeddings = false;
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool qk_norm = false;         // RMSNorm over each head of q and k before RoPE
  bool sandwich_norms = false;  // norms after attention and MLP too (Gemma)
  Activation activation = Activation::Silu;
  RopeConfig rope;
  RopeConfig local_rope;                // layers with a sliding window, where the architecture has two
  std::vector<int64_t> sliding_window;  // per layer; 0: full attention
  MoeConfig moe;
  std::vector<bool> moe_layer;  // per layer; empty: all dense
  int64_t bos = -1, pad = -1;
  std::vector<int64_t> eos;
  std::string dtype = "bfloat16";  // of the source weights, for the artifact's config

  int64_t query_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  bool is_moe(int64_t layer) const { return !moe_layer.empty() && moe_layer[static_cast<size_t>(layer)]; }
  const RopeConfig& rope_of(int64_t layer) const {
    return sliding_window[static_cast<size_t>(layer)] > 0 ? local_rope : rope;
  }

  /// From a config.json of the hub, old style (rope_theta, rope_scaling, torch_dtype) or new
  /// (rope_parameters, dtype), nested text_config included. An architecture or a feature that the table does
  /// not have is refused by name.
  static ModelConfig from_json(const Json& json, std::string_view where);
  /// A config.json that from_json reads back to the same value.
  Json to_json() const;
  /// Checks that the numbers fit together; throws with the field.
  void validate(std::string_view where) const;
  bool operator==(const ModelConfig&) const = default;
};

/// One linear layer by canonical name: weight [out, in] and bias [out] under NAME.weight and NAME.bias.
struct LinearShape {
  std::string name;
  int64_t out = 0;
  int64_t in = 0;
  bool bias = false;
};

/// The linears of one layer in the order they run: q, k, v, o, then gate, up, down (of every expert in turn).
/// Names: model.layers.L.self_attn.q_proj, ...mlp.gate_proj, ...mlp.experts.E.gate_proj.
/// The router (model.layers.L.mlp.gate) is not among them: it always stays 16-bit.
std::vector<LinearShape> linears_of_layer(const ModelConfig& config, int64_t layer);

/// A tensor that is not a linear: norms, routers, embedding. NAME.weight.
struct PlainShape {
  std::string name;  // with ".weight"
  std::vector<int64_t> shape;
};

/// input_layernorm, post_attention_layernorm, (pre_|post_)feedforward_layernorm, self_attn.q_norm, ...,
/// mlp.gate
std::vector<PlainShape> plain_tensors_of_layer(const ModelConfig& config, int64_t layer);

/// Outside the layers: model.embed_tokens.weight, model.norm.weight, and lm_head.weight unless tied.
std::vector<PlainShape> plain_tensors_of_model(const ModelConfig& config);

/// Weights of the whole model, embedding and head included.
int64_t parameter_count(const ModelConfig& config);

}  // namespace quatrain
