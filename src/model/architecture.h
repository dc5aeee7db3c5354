// The architecture table: what each family of decoder-only transformers has and how its files spell it. A
// forward pass never asks for a name; it reads the flags that from_json copies from here into ModelConfig.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/config.h"

namespace quatrain {

struct Architecture {
  /// Which layers attend through a sliding window, and which config.json fields say so.
  enum class Window {
    None,         // full attention everywhere
    All,          // sliding_window, when set, holds for every layer
    Gated,        // use_sliding_window; layer_types, or layers from max_window_layers on
    GatedAll,     // use_sliding_window; every layer
    Alternating,  // layer_types, or every sliding_window_pattern-th layer is full
  };
  enum class Bias { None, Qkv, Optional };  // Optional: attention_bias (q, k, v and o)

  std::string_view name;   // ModelConfig::architecture and config.json's model_type
  std::string_view label;  // for people
  std::string_view class_name;
  std::string_view gguf;  // general.architecture; Mistral and Mixtral files call themselves llama
  Window window = Window::None;
  Bias bias = Bias::None;
  bool mlp_bias = false;  // mlp_bias may be set
  bool moe = false;
  bool qk_norm = false;
  bool sandwich_norms = false;
  bool scaled_embedding = false;   // by sqrt(hidden)
  bool fused_projections = false;  // hub files hold qkv_proj and gate_up_proj
  float norm_offset = 0;
  Activation activation = Activation::Silu;
  // What the reference implementation assumes where config.json is silent.
  double theta = 10000, local_theta = 10000;
  double norm_epsilon = 1e-6;
  int64_t sliding_window = 0;
  int64_t max_positions = 32768;
  bool tied = false;
};

std::span<const Architecture> architecture_table();

/// By model_type; nullptr when the table does not have it.
const Architecture* find_architecture(std::string_view model_type);
/// By class name of config.json's `architectures`; nullptr when absent.
const Architecture* find_architecture_class(std::string_view class_name);
/// By ModelConfig::architecture, which always names a row.
const Architecture& architecture_of(const ModelConfig& config);

/// "llama, mistral, ...": for refusals.
std::string supported_architectures();

}  // namespace quatrain
