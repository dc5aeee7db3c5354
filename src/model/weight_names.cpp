// How files name their tensors.
#include <charconv>

#include "base/error.h"
#include "model/architecture.h"
#include "model/weight_map.h"

namespace quatrain {
namespace {

using Parts = std::optional<std::vector<std::string>>;

void replace(std::string& text, std::string_view from, std::string_view to) {
  if (const size_t at = text.find(from); at != text.npos) text.replace(at, from.size(), to);
}

// "gate_proj" -> MLP.experts.0.gate_proj.weight, MLP.experts.1...., for each of `linears` in turn.
std::vector<std::string> of_experts(const std::string& mlp, const ModelConfig& config,
                                    std::initializer_list<std::string_view> linears) {
  std::vector<std::string> names;
  for (int64_t expert = 0; expert < config.moe.experts; ++expert)
    for (const std::string_view linear : linears)
      names.push_back(fmt::format("{}experts.{}.{}.weight", mlp, expert, linear));
  return names;
}

// Splits "blk.12.attn_q.weight" into 12 and "attn_q.weight".
std::optional<std::pair<int64_t, std::string_view>> split_number(std::string_view text,
                                                                 std::string_view prefix) {
  if (!text.starts_with(prefix)) return std::nullopt;
  text.remove_prefix(prefix.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto digits = static_cast<size_t>(end - text.data());
  if (error != std::errc() || digits >= text.size() || text[digits] != '.') return std::nullopt;
  return std::pair{number, text.substr(digits + 1)};
}

Parts hub_parts(std::string name, const ModelConfig& config) {
  if (name.ends_with("rotary_emb.inv_freq") || name.ends_with(".attention.masked_bias"))
    return std::vector<std::string>{};
  replace(name, ".block_sparse_moe.", ".mlp.");
  if (const size_t experts = name.find(".mlp.experts."); experts != name.npos) {
    const std::string mlp = name.substr(0, experts + 5);
    const std::string rest = name.substr(mlp.size() + 8);
    if (rest == "gate_up_proj" || rest == "gate_up_proj.weight")
      return of_experts(mlp, config, {"gate_proj", "up_proj"});
    if (rest == "down_proj" || rest == "down_proj.weight") return of_experts(mlp, config, {"down_proj"});
    replace(name, ".w1.", ".gate_proj.");
    replace(name, ".w2.", ".down_proj.");
    replace(name, ".w3.", ".up_proj.");
    return std::vector{name};
  }
  for (const auto& [fused, parts] :
       {std::pair{std::string_view(".self_attn.qkv_proj."), std::vector{"q_proj", "k_proj", "v_proj"}},
        {std::string_view(".mlp.gate_up_proj."), {"gate_proj", "up_proj"}}}) {
    const size_t at = name.find(fused);
    if (at == name.npos) continue;
    const std::string before = name.substr(0, name.find('.', at + 1) + 1);
    const std::string after = name.substr(at + fused.size() - 1);
    std::vector<std::string> names;
    for (const char* part : parts) names.push_back(before + part + after);
    return names;
  }
  return std::vector{name};
}

// Tensors of one layer by GGUF's name without ".weight"; those with an "experts" prefix hold all experts.
Parts gguf_layer_parts(const std::string& layer, std::string_view name, const ModelConfig& config) {
  const bool sandwich = config.sandwich_norms;
  const std::string mlp = layer + "mlp.";
  const size_t dot = name.rfind('.');
  const std::string_view stem = name.substr(0, dot);
  const std::string suffix(name.substr(dot));
  if (suffix != ".weight" && suffix != ".bias") return std::nullopt;
  const auto one = [&](std::string_view canonical) {
    return std::vector{layer + std::string(canonical) + suffix};
  };
  if (stem == "attn_norm") return one("input_layernorm");
  if (stem == "attn_q") return one("self_attn.q_proj");
  if (stem == "attn_k") return one("self_attn.k_proj");
  if (stem == "attn_v") return one("self_attn.v_proj");
  if (stem == "attn_output") return one("self_attn.o_proj");
  if (stem == "attn_qkv")
    return std::vector{layer + "self_attn.q_proj" + suffix, layer + "self_attn.k_proj" + suffix,
                       layer + "self_attn.v_proj" + suffix};
  if (stem == "attn_q_norm") return one("self_attn.q_norm");
  if (stem == "attn_k_norm") return one("self_attn.k_norm");
  if (stem == "ffn_norm") return one(sandwich ? "pre_feedforward_layernorm" : "post_attention_layernorm");
  if (stem == "post_attention_norm") return one("post_attention_layernorm");
  if (stem == "post_ffw_norm") return one("post_feedforward_layernorm");
  if (stem == "ffn_gate") return one("mlp.gate_proj");
  if (stem == "ffn_up" && architecture_of(config).fused_projections)
    return std::vector{mlp + "gate_proj" + suffix, mlp + "up_proj" + suffix};
  if (stem == "ffn_up") return one("mlp.up_proj");
  if (stem == "ffn_down") return one("mlp.down_proj");
  if (stem == "ffn_gate_inp") return one("mlp.gate");
  if (stem == "attn_rot_embd" || stem == "attn.rot_embd") return std::vector<std::string>{};
  if (suffix == ".weight") {
    if (stem == "ffn_gate_exps") return of_experts(mlp, config, {"gate_proj"});
    if (stem == "ffn_up_exps") return of_experts(mlp, config, {"up_proj"});
    if (stem == "ffn_down_exps") return of_experts(mlp, config, {"down_proj"});
    if (stem == "ffn_gate_up_exps") return of_experts(mlp, config, {"gate_proj", "up_proj"});
  }
  // The first Mixtral files: ffn_gate.3.weight.
  for (const auto& [prefix, linear] :
       {std::pair{"ffn_gate.", "gate_proj"}, {"ffn_up.", "up_proj"}, {"ffn_down.", "down_proj"}})
    if (const auto expert = split_number(name, prefix); expert && expert->second == "weight")
      return std::vector{fmt::format("{}experts.{}.{}.weight", mlp, expert->first, linear)};
  return std::nullopt;
}

}  // namespace

WeightNamer hub_namer(const TensorSource& source, const ModelConfig& config) {
  const bool bare = source.find("embed_tokens.weight") != nullptr;
  const bool multimodal = config.architecture == "gemma3_text";
  return [bare, multimodal, config](std::string_view name) -> Parts {
    if (multimodal) {
      for (const std::string_view prefix :
           {"vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."})
        if (name.starts_with(prefix)) return std::vector<std::string>{};
      if (name.starts_with("model.language_model."))
        return hub_parts("model." + std::string(name.substr(21)), config);
      if (name.starts_with("language_model.")) name.remove_prefix(15);
    }
    return hub_parts(bare && name != "lm_head.weight" ? "model." + std::string(name) : std::string(name),
                     config);
  };
}

WeightNamer gguf_namer(const ModelConfig& config) {
  return [config](std::string_view name) -> Parts {
    if (name == "token_embd.weight") return std::vector<std::string>{"model.embed_tokens.weight"};
    if (name == "output_norm.weight") return std::vector<std::string>{"model.norm.weight"};
    if (name == "output.weight") return std::vector<std::string>{"lm_head.weight"};
    // Read into the config's RoPE.
    if (name == "rope_freqs.weight" || name.starts_with("rope_factors_")) return std::vector<std::string>{};
    const auto block = split_number(name, "blk.");
    if (!block) return std::nullopt;
    return gguf_layer_parts(fmt::format("model.layers.{}.", block->first), block->second, config);
  };
}

}  // namespace quatrain
