// ModelConfig from and to config.json. Where a field is absent, the value is the one that the reference
// implementation (transformers) assumes for that architecture.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/half.h"
#include "model/architecture.h"
#include "model/json_field.h"
#include "model/rope_json.h"

namespace quatrain {
namespace {

using Window = Architecture::Window;
using Bias = Architecture::Bias;

// Fields of other families that change the arithmetic. Present and not off, they are refused by name.
constexpr std::array<std::pair<std::string_view, std::string_view>, 20> kUnsupported = {{
    {"attn_logit_softcapping", "attention logit soft-capping"},
    {"final_logit_softcapping", "logit soft-capping"},
    {"use_bidirectional_attention", "bidirectional attention"},
    {"dual_chunk_attention_config", "dual chunk attention"},
    {"shared_expert_intermediate_size", "a shared expert"},
    {"n_shared_experts", "shared experts"},
    {"attn_output_gate", "gated attention output"},
    {"attention_chunk_size", "chunked attention"},
    {"no_rope_layers", "layers without RoPE"},
    {"no_rope_layer_interval", "layers without RoPE"},
    {"num_kv_shared_layers", "KV shared between layers"},
    {"hidden_size_per_layer_input", "per-layer embeddings"},
    {"kv_lora_rank", "multi-head latent attention"},
    {"clip_qkv", "clipped q, k, v"},
    {"residual_multiplier", "a residual multiplier"},
    {"embedding_multiplier", "an embedding multiplier"},
    {"attention_multiplier", "an attention multiplier"},
    {"logits_scaling", "scaled logits"},
    {"use_mrope", "multimodal RoPE"},
    {"ssm_cfg", "state-space layers"},
}};

bool is_off(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  return value.empty();
}

void refuse_quantized(const Json& json, std::string_view where) {
  const Json* quantization = json_field(json, "quantization_config");
  if (quantization == nullptr) return;
  std::string method = json_string_or(*quantization, "quant_method", "", where);
  if (method == "quatrain") return;
  if (method.empty()) method = json_string_or(*quantization, "quant_algo", "unnamed", where);
  fail("{}: the weights are already quantised (quantization_config: {}); give the 16-bit model", where,
       method);
}

const Architecture& read_architecture(const Json& json, std::string_view where) {
  const std::string model_type = json_string_or(json, "model_type", "", where);
  std::string class_name;
  if (const Json* classes = json_field(json, "architectures"); classes != nullptr) {
    require(classes->is_array() && !classes->empty() && classes->front().is_string(),
            "{}: field \"architectures\" must be a list of names", where);
    class_name = classes->front().get<std::string>();
  }
  // Configs of Gemma 3 without a vision part have been seen under the name of the whole family.
  const Architecture* row = find_architecture(model_type == "gemma3" ? "gemma3_text" : model_type);
  if (row == nullptr && model_type.empty()) row = find_architecture_class(class_name);
  require(row != nullptr, "{}: architecture \"{}\"{} is not supported; supported are {}", where,
          model_type.empty() ? class_name : model_type,
          class_name.empty() || model_type.empty() ? "" : " (" + class_name + ")", supported_architectures());
  // A task head other than the causal language model (classification, reward) ends differently. The bare
  // model (LlamaModel) is the name under which some files were saved.
  const std::string_view causal = "ForCausalLM";
  const bool bare =
      class_name.ends_with("Model") &&
      find_architecture_class(class_name.substr(0, class_name.size() - 5) + std::string(causal)) != nullptr;
  require(class_name.empty() || bare || find_architecture_class(class_name) != nullptr ||
              class_name == "Gemma3ForConditionalGeneration",
          "{}: model class \"{}\" is not supported; supported is {}", where, class_name, row->class_name);
  return *row;
}

Activation read_activation(const Json& json, const Architecture& architecture, std::string_view where) {
  const bool gelu = architecture.activation == Activation::GeluTanh;
  const char* key = json_field(json, "hidden_activation") != nullptr ? "hidden_activation" : "hidden_act";
  const std::string name = json_string_or(json, key, gelu ? "gelu_pytorch_tanh" : "silu", where);
  if (name == "silu" || name == "swish") return Activation::Silu;
  if (name == "gelu_pytorch_tanh") return Activation::GeluTanh;
  fail("{}: {} \"{}\" is not supported; supported are silu and gelu_pytorch_tanh", where, key, name);
}

// Layer types of the file, checked; empty when it names none.
std::vector<bool> read_layer_types(const Json& json, int64_t layers, std::string_view where) {
  const Json* types = json_field(json, "layer_types");
  if (types == nullptr) return {};
  require(types->is_array() && static_cast<int64_t>(types->size()) == layers,
          "{}: field \"layer_types\" must name each of the {} layers", where, layers);
  std::vector<bool> sliding;
  for (const Json& type : *types) {
    require(type.is_string(), "{}: field \"layer_types\" must hold names", where);
    const auto name = type.get<std::string>();
    require(name == "full_attention" || name == "sliding_attention", "{}: layer type \"{}\" is not supported",
            where, name);
    sliding.push_back(name == "sliding_attention");
  }
  return sliding;
}

void read_windows(const Json& json, const Architecture& architecture, ModelConfig& config,
                  std::string_view where) {
  const std::vector<bool> types = read_layer_types(json, config.layers, where);
  config.sliding_window.assign(static_cast<size_t>(config.layers), 0);
  if (architecture.window == Window::None) {
    require(std::ranges::find(types, true) == types.end(), "{}: sliding windows are not supported for {}",
            where, architecture.name);
    return;
  }
  // Absent means the default; null means no window.
  int64_t window = json.contains("sliding_window") ? json_integer_or(json, "sliding_window", 0, where)
                                                   : json_integer_or(json, "sliding_window_attention_size",
                                                                     architecture.sliding_window, where);
  require(window >= 0, "{}: field \"sliding_window\" must not be negative", where);
  const bool gated = architecture.window == Window::Gated || architecture.window == Window::GatedAll;
  if (gated && !json_bool_or(json, "use_sliding_window", false, where)) window = 0;

  std::vector<bool> sliding(config.sliding_window.size(), false);
  if (architecture.window == Window::All) {
    sliding.assign(sliding.size(), window > 0);
  } else if (architecture.window == Window::Gated) {
    const int64_t first = json_integer_or(json, "max_window_layers", 28, where);
    for (int64_t layer = 0; layer < config.layers; ++layer)
      sliding[static_cast<size_t>(layer)] = window > 0 && layer >= first;
  } else if (architecture.window == Window::GatedAll) {
    // Versions of the reference disagree on whether max_window_layers counts here.
    require(window == 0 || json_integer_or(json, "max_window_layers", 0, where) <= 0,
            "{}: use_sliding_window with max_window_layers is not supported for {}", where,
            architecture.name);
    sliding.assign(sliding.size(), window > 0);
  } else {
    const int64_t pattern = json_integer_or(json, "sliding_window_pattern", 6, where);
    require(pattern > 0, "{}: field \"sliding_window_pattern\" must be positive", where);
    for (int64_t layer = 0; layer < config.layers; ++layer)
      sliding[static_cast<size_t>(layer)] = (layer + 1) % pattern != 0;
  }
  const bool typed = architecture.window == Window::Gated || architecture.window == Window::Alternating;
  if (!types.empty()) {
    require(typed || types == sliding, "{}: layer_types that alternate are not supported for {}", where,
            architecture.name);
    sliding = types;
  }
  require(window > 0 || std::ranges::find(sliding, true) == sliding.end(),
          "{}: layers of type sliding_attention need a \"sliding_window\"", where);
  for (size_t layer = 0; layer < sliding.size(); ++layer)
    config.sliding_window[layer] = sliding[layer] ? window : 0;
}

void read_moe(const Json& json, const Architecture& architecture, ModelConfig& config,
              std::string_view where) {
  const bool mixtral = architecture.name == "mixtral";
  const char* count_key =
      json_field(json, "num_local_experts") != nullptr ? "num_local_experts" : "num_experts";
  config.moe.experts = json_integer_or(json, count_key, mixtral ? 8 : 128, where);
  config.moe.experts_per_token = json_integer_or(json, "num_experts_per_tok", mixtral ? 2 : 8, where);
  config.moe.intermediate =
      mixtral ? config.intermediate : json_integer_or(json, "moe_intermediate_size", 768, where);
  config.moe.normalize_top_k = mixtral || json_bool_or(json, "norm_topk_prob", false, where);
  config.moe_layer.assign(static_cast<size_t>(config.layers), true);
  if (mixtral) return;
  const int64_t step = json_integer_or(json, "decoder_sparse_step", 1, where);
  require(step > 0, "{}: field \"decoder_sparse_step\" must be positive", where);
  for (int64_t layer = 0; layer < config.layers; ++layer)
    config.moe_layer[static_cast<size_t>(layer)] = config.moe.experts > 0 && (layer + 1) % step == 0;
  const Json* dense = json_field(json, "mlp_only_layers");
  if (dense == nullptr) return;
  require(dense->is_array(), "{}: field \"mlp_only_layers\" must be a list", where);
  for (const Json& layer : *dense) {
    const auto index = json_whole<int64_t>(layer);
    require(index.has_value(), "{}: field \"mlp_only_layers\" must hold layer numbers, not {}", where,
            layer.dump().substr(0, 40));
    if (*index >= 0 && *index < config.layers) config.moe_layer[static_cast<size_t>(*index)] = false;
  }
}

int64_t token_or(const Json& json, const char* key, std::string_view where) {
  const int64_t id = json_integer_or(json, key, -1, where);
  return id < 0 ? -1 : id;
}

void read_tokens(const Json& json, ModelConfig& config, std::string_view where) {
  config.bos = token_or(json, "bos_token_id", where);
  config.pad = token_or(json, "pad_token_id", where);
  const Json* eos = json_field(json, "eos_token_id");
  if (eos == nullptr) return;
  if (!eos->is_array()) {
    if (const int64_t id = token_or(json, "eos_token_id", where); id >= 0) config.eos.push_back(id);
    return;
  }
  for (const Json& id : *eos) {
    const auto token = json_whole<int64_t>(id);
    require(token.has_value() && *token >= 0, "{}: field \"eos_token_id\" must hold token ids, not {}", where,
            id.dump().substr(0, 40));
    config.eos.push_back(*token);
  }
}

std::string read_dtype(const Json& json, std::string_view where) {
  std::string name =
      json_string_or(json, "dtype", json_string_or(json, "torch_dtype", "bfloat16", where), where);
  if (name.starts_with("torch.")) name.erase(0, 6);
  require(name == "float32" || name == "float16" || name == "bfloat16",
          "{}: dtype \"{}\" is not supported; supported are float32, float16, bfloat16", where, name);
  return name;
}

// The reference multiplies by sqrt(hidden) rounded to the type of the weights.
float gemma_scale(int64_t hidden, const std::string& dtype) {
  const auto scale = static_cast<float>(std::sqrt(static_cast<double>(hidden)));
  if (dtype == "bfloat16") return bf16_to_float(float_to_bf16(scale));
  if (dtype == "float16") return fp16_to_float(float_to_fp16(scale));
  return scale;
}

double default_attention_scale(const ModelConfig& config, double query_scalar) {
  return std::pow(query_scalar > 0 ? query_scalar : static_cast<double>(config.head_dim), -0.5);
}

ModelConfig read_text(const Json& json, std::string_view where) {
  require(json.is_object(), "{}: a model's config must be a JSON object", where);
  const Architecture& architecture = read_architecture(json, where);
  refuse_quantized(json, where);
  for (const auto& [key, feature] : kUnsupported) {
    const Json* field = json_field(json, key);
    require(field == nullptr || is_off(*field), "{}: {} (field \"{}\") is not supported", where, feature,
            key);
  }
  const bool gemma = architecture.scaled_embedding;
  const auto size = [&](const char* key, int64_t gemma_default) {
    return gemma ? json_integer_or(json, key, gemma_default, where) : json_integer(json, key, where);
  };

  ModelConfig config;
  config.architecture = architecture.name;
  // Gemma's files leave out what equals the 4B model's class defaults; others always say their shape.
  config.vocabulary = size("vocab_size", 262208);
  config.hidden = size("hidden_size", 2304);
  config.intermediate = size("intermediate_size", 9216);
  config.layers = size("num_hidden_layers", 26);
  config.heads = size("num_attention_heads", 8);
  require(config.heads > 0, "{}: field \"num_attention_heads\" must be positive, not {}", where,
          config.heads);
  require(config.layers > 0 && config.layers <= 1024,
          "{}: field \"num_hidden_layers\" must be 1 to 1024, not {}", where, config.layers);
  config.kv_heads = json_integer_or(json, "num_key_value_heads", gemma ? 4 : config.heads, where);
  if (gemma && json_field(json, "head_dim") == nullptr) {
    config.head_dim = 256;
  } else if (json_field(json, "head_dim") != nullptr) {
    config.head_dim = json_integer(json, "head_dim", where);
  } else if (architecture.qk_norm) {
    config.head_dim = 128;
  } else {
    require(config.hidden % config.heads == 0,
            "{}: hidden_size {} is not a multiple of num_attention_heads {}, and there is no head_dim", where,
            config.hidden, config.heads);
    config.head_dim = config.hidden / config.heads;
  }
  config.max_positions = json_integer_or(json, "max_position_embeddings", architecture.max_positions, where);
  config.norm_epsilon =
      static_cast<float>(json_number_or(json, "rms_norm_eps", architecture.norm_epsilon, where));
  config.tied_embeddings = json_bool_or(json, "tie_word_embeddings", architecture.tied, where);
  config.qk_norm = architecture.qk_norm;
  require(json_bool_or(json, "use_qk_norm", config.qk_norm, where) == config.qk_norm,
          "{}: use_qk_norm is not supported for {}", where, architecture.name);
  config.sandwich_norms = architecture.sandwich_norms;
  const bool attention_bias =
      architecture.bias == Bias::Optional && json_bool_or(json, "attention_bias", false, where);
  config.qkv_bias = architecture.bias == Bias::Qkv || attention_bias;
  config.output_bias = attention_bias;
  config.mlp_bias = architecture.mlp_bias && json_bool_or(json, "mlp_bias", false, where);
  config.activation = read_activation(json, architecture, where);
  config.dtype = read_dtype(json, where);
  // rms_norm_offset and embedding_scale are ours: GGUF files hold norms with the offset added.
  config.norm_offset =
      static_cast<float>(json_number_or(json, "rms_norm_offset", architecture.norm_offset, where));
  config.embedding_scale = static_cast<float>(json_number_or(
      json, "embedding_scale", gemma ? gemma_scale(config.hidden, config.dtype) : 1.0f, where));
  if (architecture.moe) read_moe(json, architecture, config, where);
  read_windows(json, architecture, config, where);
  rope_from_json(json, architecture, config, where);
  read_tokens(json, config, where);
  const double query_scalar = gemma ? json_number_or(json, "query_pre_attn_scalar", 256, where) : 0;
  require(query_scalar >= 0, "{}: field \"query_pre_attn_scalar\" must be positive", where);
  config.attention_scale = static_cast<float>(default_attention_scale(config, query_scalar));
  config.validate(where);
  return config;
}

// A number that reads back to the same float, as short as possible: 1e-06, not 9.999999974752427e-07.
double shortest(float value) {
  return std::stod(fmt::format("{}", value));
}

// query_pre_attn_scalar whose power -1/2 is `scale`: a whole number where one fits.
double query_scalar_of(float scale) {
  const double exact = 1 / (static_cast<double>(scale) * static_cast<double>(scale));
  const double rounded = std::round(exact);
  return static_cast<float>(std::pow(rounded, -0.5)) == scale ? rounded : exact;
}

}  // namespace

ModelConfig ModelConfig::from_json(const Json& json, std::string_view where) {
  const Json* text = json_field(json, "text_config");
  if (text == nullptr || json.contains("hidden_size")) return read_text(json, where);
  require(text->is_object(), "{}: field \"text_config\" must be an object", where);
  const std::string family = json_string_or(json, "model_type", "", where);
  const bool known = family.empty() || family == "gemma3" || find_architecture(family) != nullptr;
  require(known, "{}: architecture \"{}\" is not supported; supported are {}", where, family,
          supported_architectures());
  refuse_quantized(json, where);
  Json merged = *text;
  if (!merged.contains("model_type") && !family.empty()) merged["model_type"] = family;
  for (const char* key :
       {"tie_word_embeddings", "dtype", "torch_dtype", "eos_token_id", "bos_token_id", "pad_token_id"})
    if (!merged.contains(key) && json.contains(key)) merged[key] = json[key];
  return read_text(merged, where);
}

Json ModelConfig::to_json() const {
  const Architecture& row = architecture_of(*this);
  Json json = {{"architectures", {row.class_name}},
               {"model_type", row.name},
               {"vocab_size", vocabulary},
               {"hidden_size", hidden},
               {"intermediate_size", intermediate},
               {"num_hidden_layers", layers},
               {"num_attention_heads", heads},
               {"num_key_value_heads", kv_heads},
               {"head_dim", head_dim},
               {"max_position_embeddings", max_positions},
               {"rms_norm_eps", shortest(norm_epsilon)},
               {"tie_word_embeddings", tied_embeddings},
               {"torch_dtype", dtype}};
  const char* activation_name = activation == Activation::Silu ? "silu" : "gelu_pytorch_tanh";
  json[row.scaled_embedding ? "hidden_activation" : "hidden_act"] = activation_name;
  if (row.bias == Bias::Optional) json["attention_bias"] = qkv_bias;
  if (row.mlp_bias) json["mlp_bias"] = mlp_bias;
  if (row.scaled_embedding) json["query_pre_attn_scalar"] = query_scalar_of(attention_scale);
  if (norm_offset != row.norm_offset) json["rms_norm_offset"] = norm_offset;
  if (embedding_scale != (row.scaled_embedding ? gemma_scale(hidden, dtype) : 1.0f))
    json["embedding_scale"] = shortest(embedding_scale);
  if (row.moe) {
    json[row.name == "mixtral" ? "num_local_experts" : "num_experts"] = moe.experts;
    json["num_experts_per_tok"] = moe.experts_per_token;
    if (row.name != "mixtral") {
      json["moe_intermediate_size"] = moe.intermediate;
      json["norm_topk_prob"] = moe.normalize_top_k;
      json["decoder_sparse_step"] = 1;
      json["mlp_only_layers"] = Json::array();
      for (size_t layer = 0; layer < moe_layer.size(); ++layer)
        if (!moe_layer[layer]) json["mlp_only_layers"].push_back(layer);
    }
  }
  if (row.window != Window::None) {
    const int64_t window = *std::ranges::max_element(sliding_window);
    json["sliding_window"] = window > 0 ? Json(window) : Json();
    if (row.window == Window::Gated || row.window == Window::GatedAll)
      json["use_sliding_window"] = window > 0;
    if (row.window == Window::Gated || row.window == Window::Alternating) {
      json["layer_types"] = Json::array();
      for (const int64_t of_layer : sliding_window)
        json["layer_types"].push_back(of_layer > 0 ? "sliding_attention" : "full_attention");
    }
  }
  rope_to_json(*this, row, json);
  json["bos_token_id"] = bos < 0 ? Json() : Json(bos);
  json["pad_token_id"] = pad < 0 ? Json() : Json(pad);
  json["eos_token_id"] = eos.empty() ? Json() : eos.size() == 1 ? Json(eos.front()) : Json(eos);
  return json;
}

}  // namespace quatrain
