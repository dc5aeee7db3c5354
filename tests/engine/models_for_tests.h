// The architectures that the engine's tests run through, by name.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "memory_model.h"

namespace quatrain {

inline std::vector<std::pair<std::string, ModelConfig>> test_architectures() {
  std::vector<std::pair<std::string, ModelConfig>> all;
  all.emplace_back("plain", small_config());

  ModelConfig biased = small_config();  // every bias, tied head, a head width of no vector
  biased.qkv_bias = biased.output_bias = biased.mlp_bias = true;
  biased.tied_embeddings = true;
  biased.head_dim = 20;
  biased.attention_scale = 1 / std::sqrt(20.0f);
  biased.kv_heads = 4;
  biased.rope.partial = biased.local_rope.partial = 0.5;
  all.emplace_back("biased", biased);

  ModelConfig sandwich = small_config();  // the Gemma family
  sandwich.architecture = "gemma3_text";
  sandwich.sandwich_norms = sandwich.qk_norm = true;
  sandwich.norm_offset = 1;
  sandwich.embedding_scale = 8;
  sandwich.activation = Activation::GeluTanh;
  sandwich.kv_heads = 1;
  sandwich.layers = 3;
  sandwich.sliding_window = {10, 10, 0};
  sandwich.local_rope.theta = 1000;
  all.emplace_back("sandwich", sandwich);

  ModelConfig mixture = small_config();  // a dense layer, then experts
  mixture.architecture = "qwen3_moe";
  mixture.qk_norm = true;
  mixture.moe = {.experts = 5, .experts_per_token = 2, .intermediate = 32, .normalize_top_k = true};
  mixture.moe_layer = {false, true};
  all.emplace_back("mixture", mixture);
  mixture.moe.normalize_top_k = false;
  mixture.moe.experts_per_token = 3;
  mixture.moe_layer = {true, true};
  all.emplace_back("mixture without renormalising", mixture);
  return all;
}

/// A4 activations, KV4, weights in groups: everything that the integer path has.
inline QuantizationConfig test_quantization() {
  QuantizationConfig quantization;
  quantization.recipe = "test";
  quantization.defaults = {.activation = {.bits = 4, .group = 32, .symmetric = false},
                           .input_transform = {},
                           .weight_group = 32,
                           .residual_block = 32};
  quantization.kv.bits = 4;
  quantization.embedding_bits = 8;
  quantization.lm_head_bits = 8;
  return quantization;
}

inline std::vector<int32_t> random_ids(int64_t count, int64_t vocabulary, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocabulary))));
  return ids;
}

}  // namespace quatrain
