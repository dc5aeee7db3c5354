// Published shapes by name, for synthetic models of real size.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "model/shape_file.h"

namespace quatrain {
namespace {

struct NamedShape {
  std::string_view name, model_type;
  int64_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocabulary;
  double theta = 10000;
  bool tied = false;
  int64_t experts = 0, experts_per_token = 0, expert_width = 0;
};

constexpr std::array<NamedShape, 41> kShapes = {{
    {"smollm2-135m", "llama", 576, 1536, 30, 9, 3, 64, 49152, 1e5, true},
    {"smollm2-360m", "llama", 960, 2560, 32, 15, 5, 64, 49152, 1e5, true},
    {"smollm2-1.7b", "llama", 2048, 8192, 24, 32, 32, 64, 49152, 130000, true},
    {"llama2-7b", "llama", 4096, 11008, 32, 32, 32, 128, 32000},
    {"llama2-13b", "llama", 5120, 13824, 40, 40, 40, 128, 32000},
    {"llama2-70b", "llama", 8192, 28672, 80, 64, 8, 128, 32000},
    {"llama3-8b", "llama", 4096, 14336, 32, 32, 8, 128, 128256, 5e5},
    {"llama3-70b", "llama", 8192, 28672, 80, 64, 8, 128, 128256, 5e5},
    {"llama3.1-8b", "llama", 4096, 14336, 32, 32, 8, 128, 128256, 5e5},
    {"llama3.1-70b", "llama", 8192, 28672, 80, 64, 8, 128, 128256, 5e5},
    {"llama3.1-405b", "llama", 16384, 53248, 126, 128, 8, 128, 128256, 5e5},
    {"llama3.2-1b", "llama", 2048, 8192, 16, 32, 8, 64, 128256, 5e5, true},
    {"llama3.2-3b", "llama", 3072, 8192, 28, 24, 8, 128, 128256, 5e5, true},
    {"llama3.3-70b", "llama", 8192, 28672, 80, 64, 8, 128, 128256, 5e5},
    {"mistral-7b", "mistral", 4096, 14336, 32, 32, 8, 128, 32768, 1e6},
    {"mixtral-8x7b", "mixtral", 4096, 14336, 32, 32, 8, 128, 32000, 1e6, false, 8, 2, 14336},
    {"mixtral-8x22b", "mixtral", 6144, 16384, 56, 48, 8, 128, 32768, 1e6, false, 8, 2, 16384},
    {"qwen2.5-0.5b", "qwen2", 896, 4864, 24, 14, 2, 64, 151936, 1e6, true},
    {"qwen2.5-1.5b", "qwen2", 1536, 8960, 28, 12, 2, 128, 151936, 1e6, true},
    {"qwen2.5-3b", "qwen2", 2048, 11008, 36, 16, 2, 128, 151936, 1e6, true},
    {"qwen2.5-7b", "qwen2", 3584, 18944, 28, 28, 4, 128, 152064, 1e6},
    {"qwen2.5-14b", "qwen2", 5120, 13824, 48, 40, 8, 128, 152064, 1e6},
    {"qwen2.5-32b", "qwen2", 5120, 27648, 64, 40, 8, 128, 152064, 1e6},
    {"qwen2.5-72b", "qwen2", 8192, 29568, 80, 64, 8, 128, 152064, 1e6},
    {"qwen3-0.6b", "qwen3", 1024, 3072, 28, 16, 8, 128, 151936, 1e6, true},
    {"qwen3-1.7b", "qwen3", 2048, 6144, 28, 16, 8, 128, 151936, 1e6, true},
    {"qwen3-4b", "qwen3", 2560, 9728, 36, 32, 8, 128, 151936, 1e6, true},
    {"qwen3-8b", "qwen3", 4096, 12288, 36, 32, 8, 128, 151936, 1e6},
    {"qwen3-14b", "qwen3", 5120, 17408, 40, 40, 8, 128, 151936, 1e6},
    {"qwen3-32b", "qwen3", 5120, 25600, 64, 64, 8, 128, 151936, 1e6},
    {"qwen3-30b-a3b", "qwen3_moe", 2048, 6144, 48, 32, 4, 128, 151936, 1e6, false, 128, 8, 768},
    {"qwen3-235b-a22b", "qwen3_moe", 4096, 12288, 94, 64, 4, 128, 151936, 1e6, false, 128, 8, 1536},
    {"qwen3-coder-480b-a35b", "qwen3_moe", 6144, 8192, 62, 96, 8, 128, 151936, 1e7, false, 160, 8, 2560},
    {"gemma3-270m", "gemma3_text", 640, 2048, 18, 4, 1, 256, 262144, 1e6, true},
    {"gemma3-1b", "gemma3_text", 1152, 6912, 26, 4, 1, 256, 262144, 1e6, true},
    {"gemma3-4b", "gemma3_text", 2560, 10240, 34, 8, 4, 256, 262208, 1e6, true},
    {"gemma3-12b", "gemma3_text", 3840, 15360, 48, 16, 8, 256, 262208, 1e6, true},
    {"gemma3-27b", "gemma3_text", 5376, 21504, 62, 32, 16, 128, 262208, 1e6, true},
    {"phi3-mini-4k", "phi3", 3072, 8192, 32, 32, 32, 96, 32064},
    {"phi3-medium-4k", "phi3", 5120, 17920, 40, 40, 10, 128, 32064},
    {"phi4", "phi3", 5120, 17920, 40, 40, 10, 128, 100352, 250000},
}};

Json to_config(const NamedShape& shape) {
  Json json = {{"model_type", shape.model_type},
               {"hidden_size", shape.hidden},
               {"intermediate_size", shape.intermediate},
               {"num_hidden_layers", shape.layers},
               {"num_attention_heads", shape.heads},
               {"num_key_value_heads", shape.kv_heads},
               {"head_dim", shape.head_dim},
               {"vocab_size", shape.vocabulary},
               {"rope_theta", shape.theta},
               {"tie_word_embeddings", shape.tied}};
  if (shape.experts > 0) {
    json["num_local_experts"] = shape.experts;
    json["num_experts_per_tok"] = shape.experts_per_token;
    json["moe_intermediate_size"] = shape.expert_width;
    json["norm_topk_prob"] = true;
  }
  if (shape.model_type == "gemma3_text") {
    json["sliding_window"] = shape.hidden > 1152 ? 1024 : 512;
    json["query_pre_attn_scalar"] = shape.name == "gemma3-27b" ? shape.hidden / shape.heads : shape.head_dim;
    if (shape.hidden > 1152) json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  } else {
    json["sliding_window"] = nullptr;
  }
  if (shape.name.starts_with("llama3.")) {
    const double factor = shape.name.starts_with("llama3.2") ? 32 : 8;
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", factor},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
    json["max_position_embeddings"] = 131072;
  }
  return json;
}

}  // namespace

ModelConfig find_shape(const std::string& name_or_file) {
  const auto named = std::ranges::find(kShapes, name_or_file, &NamedShape::name);
  if (named != kShapes.end()) return ModelConfig::from_json(to_config(*named), name_or_file);
  require(fs::exists(name_or_file), "shape \"{}\" is neither a file nor one of: {}", name_or_file,
          fmt::join(named_shapes(), ", "));
  return read_shape_file(name_or_file);
}

std::vector<std::string> named_shapes() {
  std::vector<std::string> names;
  for (const NamedShape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

}  // namespace quatrain
