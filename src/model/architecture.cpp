#include "model/architecture.h"

#include <array>

#include "base/error.h"

namespace quatrain {
namespace {

using Window = Architecture::Window;
using Bias = Architecture::Bias;

constexpr std::array<Architecture, 8> kTable = {{
    {.name = "llama",
     .label = "Llama 2, 3, 3.1, 3.2, SmolLM2",
     .class_name = "LlamaForCausalLM",
     .gguf = "llama",
     .bias = Bias::Optional,
     .mlp_bias = true,
     .max_positions = 2048},
    {.name = "mistral",
     .label = "Mistral",
     .class_name = "MistralForCausalLM",
     .gguf = "llama",
     .window = Window::All,
     .sliding_window = 4096,
     .max_positions = 131072},
    {.name = "mixtral",
     .label = "Mixtral",
     .class_name = "MixtralForCausalLM",
     .gguf = "llama",
     .window = Window::All,
     .moe = true,
     .theta = 1e6,
     .norm_epsilon = 1e-5,
     .max_positions = 131072},
    {.name = "qwen2",
     .label = "Qwen2, Qwen2.5",
     .class_name = "Qwen2ForCausalLM",
     .gguf = "qwen2",
     .window = Window::Gated,
     .bias = Bias::Qkv,
     .sliding_window = 4096},
    {.name = "qwen3",
     .label = "Qwen3",
     .class_name = "Qwen3ForCausalLM",
     .gguf = "qwen3",
     .window = Window::Gated,
     .bias = Bias::Optional,
     .qk_norm = true,
     .sliding_window = 4096},
    {.name = "qwen3_moe",
     .label = "Qwen3-MoE",
     .class_name = "Qwen3MoeForCausalLM",
     .gguf = "qwen3moe",
     .window = Window::GatedAll,
     .bias = Bias::Optional,
     .moe = true,
     .qk_norm = true,
     .sliding_window = 4096},
    {.name = "gemma3_text",
     .label = "Gemma 3 (text)",
     .class_name = "Gemma3ForCausalLM",
     .gguf = "gemma3",
     .window = Window::Alternating,
     .bias = Bias::Optional,
     .qk_norm = true,
     .sandwich_norms = true,
     .scaled_embedding = true,
     .norm_offset = 1,
     .activation = Activation::GeluTanh,
     .theta = 1e6,
     .local_theta = 1e4,
     .sliding_window = 4096,
     .max_positions = 131072,
     .tied = true},
    {.name = "phi3",
     .label = "Phi-3, Phi-4 (without longrope)",
     .class_name = "Phi3ForCausalLM",
     .gguf = "phi3",
     .window = Window::All,
     .fused_projections = true,
     .norm_epsilon = 1e-5,
     .max_positions = 4096},
}};

}  // namespace

std::span<const Architecture> architecture_table() {
  return kTable;
}

const Architecture* find_architecture(std::string_view model_type) {
  for (const Architecture& row : kTable)
    if (row.name == model_type) return &row;
  return nullptr;
}

const Architecture* find_architecture_class(std::string_view class_name) {
  for (const Architecture& row : kTable)
    if (row.class_name == class_name) return &row;
  return nullptr;
}

const Architecture& architecture_of(const ModelConfig& config) {
  const Architecture* row = find_architecture(config.architecture);
  require(row != nullptr, "architecture \"{}\" is not in the table; it has {}", config.architecture,
          supported_architectures());
  return *row;
}

std::string supported_architectures() {
  std::string names;
  for (const Architecture& row : kTable) {
    if (!names.empty()) names += ", ";
    names += row.name;
  }
  return names;
}

}  // namespace quatrain
