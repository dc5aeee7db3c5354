#include "model/gguf_metadata.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/architecture.h"

namespace quatrain {
namespace {

using Scaling = RopeConfig::Scaling;

// general.file_type: llama.cpp's number for the type of most tensors.
uint32_t file_type(const std::string& type) {
  if (type == "F32") return 0;
  if (type == "F16") return 1;
  if (type == "Q4_0") return 2;
  if (type == "Q4_1") return 3;
  if (type == "Q8_0") return 7;
  return 32;  // BF16
}

void require_sayable(bool condition, std::string_view what) {
  require(condition, "GGUF cannot hold {}; convert to safetensors instead", what);
}

}  // namespace

void write_gguf_config(const ModelConfig& config, const std::string& type, GgufWriter& writer) {
  const Architecture& row = architecture_of(config);
  const std::string architecture(row.gguf);
  writer.set_string("general.architecture", architecture);
  writer.set_string("general.type", "model");
  writer.set_u32("general.file_type", file_type(type));
  writer.set_u32("general.quantization_version", 2);
  const auto key = [&](std::string_view name) { return fmt::format("{}.{}", architecture, name); };
  const auto u32 = [&](std::string_view name, int64_t value) {
    writer.set_u32(key(name), static_cast<uint32_t>(value));
  };
  const auto f32 = [&](std::string_view name, double value) {
    writer.set_f32(key(name), static_cast<float>(value));
  };
  u32("block_count", config.layers);
  u32("context_length", config.max_positions);
  u32("embedding_length", config.hidden);
  u32("feed_forward_length", config.intermediate);
  u32("attention.head_count", config.heads);
  u32("attention.head_count_kv", config.kv_heads);
  u32("attention.key_length", config.head_dim);
  u32("attention.value_length", config.head_dim);
  f32("attention.layer_norm_rms_epsilon", config.norm_epsilon);
  u32("vocab_size", config.vocabulary);

  const RopeConfig& rope = config.rope;
  u32("rope.dimension_count", static_cast<int64_t>(static_cast<double>(config.head_dim) * rope.partial));
  f32("rope.freq_base", rope.theta);
  if (rope.scaling == Scaling::Linear || rope.scaling == Scaling::Yarn) {
    writer.set_string(key("rope.scaling.type"), rope.scaling == Scaling::Linear ? "linear" : "yarn");
    f32("rope.scaling.factor", rope.factor);
  }
  if (rope.scaling == Scaling::Yarn) {
    require_sayable(
        rope.attention_factor == 0 && rope.mscale == 0 && rope.mscale_all_dim == 0 && rope.truncate,
        "YaRN with an attention factor, mscale or untruncated bounds of its own");
    u32("rope.scaling.original_context_length", static_cast<int64_t>(rope.original_positions));
    f32("rope.scaling.yarn_beta_fast", rope.beta_fast);
    f32("rope.scaling.yarn_beta_slow", rope.beta_slow);
  }
  const bool two = row.window == Architecture::Window::Alternating;
  require_sayable(two ? config.local_rope.scaling == Scaling::None : config.local_rope == rope,
                  "a second RoPE scaling for layers with a sliding window");
  if (two) f32("rope.freq_base_swa", config.local_rope.theta);

  const int64_t window = *std::ranges::max_element(config.sliding_window);
  const bool every = std::ranges::all_of(config.sliding_window, [&](int64_t w) { return w == window; });
  if (two) {
    u32("attention.sliding_window", window);
    std::vector<bool> flags;
    bool period_of_six = true;
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      flags.push_back(config.sliding_window[static_cast<size_t>(layer)] > 0);
      period_of_six &= flags.back() == ((layer + 1) % 6 != 0) || window == 0;
    }
    if (!period_of_six)
      writer.set(key("attention.sliding_window_pattern"), {.type = GgufType::Bool, .data = flags});
  } else if (window > 0) {
    require_sayable(row.window == Architecture::Window::All && every, "sliding windows of this architecture");
    u32("attention.sliding_window", window);
  }
  if (row.scaled_embedding) {
    f32("attention.scale", config.attention_scale);
    f32("embedding_scale", config.embedding_scale);
  }
  if (row.moe) {
    u32("expert_count", config.moe.experts);
    u32("expert_used_count", config.moe.experts_per_token);
    u32("expert_feed_forward_length", config.moe.intermediate);
    if (!config.moe.normalize_top_k) writer.set_bool(key("expert_weights_norm"), false);
  }
}

std::vector<float> gguf_rope_divisors(const ModelConfig& config) {
  if (config.rope.scaling != Scaling::Llama3 && config.rope.scaling != Scaling::Divisors) return {};
  RopeConfig plain = config.rope;
  plain.scaling = Scaling::None;
  std::vector<float> divisors = plain.inverse_frequencies(config.head_dim);
  const std::vector<float> scaled = config.rope.inverse_frequencies(config.head_dim);
  for (size_t i = 0; i < divisors.size(); ++i) divisors[i] /= scaled[i];
  return divisors;
}

}  // namespace quatrain
