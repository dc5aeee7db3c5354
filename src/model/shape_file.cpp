#include "model/shape_file.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "model/json_field.h"

namespace quatrain {
namespace {

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// A scalar of YAML's core schema, with the digit groups that Python writes (262_144). Lists and strings stay
// text.
Json yaml_scalar(std::string_view text) {
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front())
    return std::string(text.substr(1, text.size() - 2));
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  if (text.empty() || text == "null" || text == "~") return nullptr;
  std::string digits(text);
  std::erase(digits, '_');
  const Json number = Json::parse(digits, nullptr, false);
  return number.is_number() ? number : Json(std::string(text));
}

// The flat part of a YAML file: "key: value" lines; indented lines belong to values that no shape needs.
Json read_flat_yaml(std::string_view text, std::string_view where) {
  Json json = Json::object();
  int line_number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    if (line.empty() || line.front() == ' ' || line.front() == '\t' || line.front() == '-') continue;
    if (const size_t comment = line.find('#');
        comment != line.npos && (comment == 0 || line[comment - 1] == ' '))
      line = line.substr(0, comment);
    line = trim(line);
    if (line.empty()) continue;
    const size_t colon = line.find(':');
    require(colon != line.npos && colon > 0, "{}:{}: not a \"key: value\" line", where, line_number);
    json[std::string(trim(line.substr(0, colon)))] = yaml_scalar(trim(line.substr(colon + 1)));
  }
  return json;
}

void copy_field(const Json& from, std::string_view key, Json& to, std::string_view as) {
  if (const Json* field = json_field(from, key)) to[std::string(as)] = *field;
}

Json hub_from_maxtext(const Json& yaml, std::string_view where) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kBlocks = {
      {{"llama2", "llama"},
       {"mistral", "mistral"},
       {"mixtral", "mixtral"},
       {"qwen2", "qwen2"},
       {"qwen3", "qwen3"},
       {"qwen3_moe", "qwen3_moe"},
       {"gemma3", "gemma3_text"}}};
  const std::string block = json_string_or(yaml, "decoder_block", "", where);
  const auto row = std::ranges::find(kBlocks, block, &std::pair<std::string_view, std::string_view>::first);
  require(row != kBlocks.end(), "{}: decoder_block \"{}\" is not supported", where, block);
  for (const char* key : {"final_logits_soft_cap", "attn_logits_soft_cap"})
    require(json_number_or(yaml, key, 0, where) == 0, "{}: {} is not supported", where, key);
  Json json = {{"model_type", row->second}, {"sliding_window", nullptr}};
  for (const auto& [key, field] : {std::pair{"base_emb_dim", "hidden_size"},
                                   {"base_mlp_dim", "intermediate_size"},
                                   {"base_num_decoder_layers", "num_hidden_layers"},
                                   {"base_num_query_heads", "num_attention_heads"},
                                   {"base_num_kv_heads", "num_key_value_heads"},
                                   {"head_dim", "head_dim"},
                                   {"vocab_size", "vocab_size"},
                                   {"normalization_layer_epsilon", "rms_norm_eps"},
                                   {"logits_via_embedding", "tie_word_embeddings"},
                                   {"rope_max_timescale", "rope_theta"},
                                   {"local_rope_max_timescale", "rope_local_base_freq"},
                                   {"sliding_window_size", "sliding_window"},
                                   {"num_experts", "num_local_experts"},
                                   {"num_experts_per_tok", "num_experts_per_tok"},
                                   {"base_moe_mlp_dim", "moe_intermediate_size"},
                                   {"norm_topk_prob", "norm_topk_prob"}})
    copy_field(yaml, key, json, field);
  for (const char* needed :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"})
    require(json.contains(needed), "{}: no {}", where, needed);
  if (const double factor = json_number_or(yaml, "rope_linear_scaling_factor", 1, where); factor != 1)
    json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
  if (row->second ==
      "gemma3_text") {  // MaxText scales by hidden / heads for the 27B model, by head_dim elsewhere
    const int64_t layers = json_integer(json, "num_hidden_layers", where);
    const int64_t heads = json_integer(json, "num_attention_heads", where);
    require(heads > 0, "{}: base_num_query_heads must be positive", where);
    json["query_pre_attn_scalar"] = layers == 62 ? json_integer(json, "hidden_size", where) / heads
                                                 : json_integer_or(json, "head_dim", 256, where);
  }
  return json;
}

Json hub_from_params(const Json& params, std::string_view where) {
  require(json_integer_or(params, "no_rope_layer_interval", 0, where) == 0,
          "{}: layers without RoPE (no_rope_layer_interval) are not supported", where);
  const bool qk_norm = json_bool_or(params, "use_qk_norm", false, where);
  const bool qkv_bias = json_bool_or(params, "attention_qkv_bias", false, where);
  const std::string norm = json_string_or(params, "norm_type", "rmsnorm", where);
  require(norm == "rmsnorm" || norm == "gemma3", "{}: norm_type \"{}\" is not supported", where, norm);
  require(json_bool_or(params, "moe", false, where) == false,
          "{}: experts (moe) are not supported in this style", where);
  Json json = {{"model_type", norm == "gemma3" ? "gemma3_text"
                              : qk_norm        ? "qwen3"
                              : qkv_bias       ? "qwen2"
                                               : "llama"}};
  for (const auto& [key, field] : {std::pair{"dim", "hidden_size"},
                                   {"hidden_dim", "intermediate_size"},
                                   {"n_layers", "num_hidden_layers"},
                                   {"n_heads", "num_attention_heads"},
                                   {"n_kv_heads", "num_key_value_heads"},
                                   {"head_dim", "head_dim"},
                                   {"vocab_size", "vocab_size"},
                                   {"norm_eps", "rms_norm_eps"},
                                   {"rope_theta", "rope_theta"},
                                   {"local_rope_theta", "rope_local_base_freq"},
                                   {"partial_rotary_factor", "partial_rotary_factor"},
                                   {"layer_types", "layer_types"},
                                   {"sliding_window", "sliding_window"},
                                   {"tie_word_embeddings", "tie_word_embeddings"}})
    copy_field(params, key, json, field);
  for (const char* needed : {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"})
    require(json.contains(needed), "{}: no {}", where, needed);
  if (!json.contains("intermediate_size")) {  // Meta's rule: two thirds of 4 * dim, scaled, rounded up
    const double scale = json_number_or(params, "ffn_dim_multiplier", 1, where);
    const int64_t multiple = json_integer_or(params, "multiple_of", 256, where);
    const int64_t dim = json_integer(params, "dim", where);
    require(dim > 0 && dim < (1 << 22) && multiple > 0 && scale > 0 && scale < 1e3,
            "{}: dim, multiple_of or ffn_dim_multiplier is out of range", where);
    const auto wide = static_cast<int64_t>(scale * static_cast<double>(2 * (4 * dim) / 3));
    json["intermediate_size"] = (wide + multiple - 1) / multiple * multiple;
  }
  if (json_bool_or(params, "use_scaled_rope", false, where))
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", json_number_or(params, "rope_scale_factor", 8, where)},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", json_number_or(params, "high_freq_factor", 4, where)},
                            {"original_max_position_embeddings", 8192}};
  return json;
}

}  // namespace

ModelConfig parse_shape(std::string_view text, bool yaml, std::string_view where) {
  if (yaml) return ModelConfig::from_json(hub_from_maxtext(read_flat_yaml(text, where), where), where);
  const Json json = parse_json(text, where);
  const bool params = json.is_object() && json.contains("dim") && !json.contains("model_type");
  return ModelConfig::from_json(params ? hub_from_params(json, where) : json, where);
}

ModelConfig read_shape_file(const fs::path& file) {
  const bool yaml = file.extension() == ".yml" || file.extension() == ".yaml";
  return parse_shape(read_file(file, size_t{1} << 24), yaml, file.string());
}

}  // namespace quatrain
