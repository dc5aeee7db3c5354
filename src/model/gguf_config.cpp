#include "model/gguf_config.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "model/architecture.h"

namespace quatrain {
namespace {

class Reader {
 public:
  explicit Reader(const GgufFile& file) : file_(file), where_(file.path().string()) {
    architecture_ = file.get<std::string>("general.architecture");
  }

  const std::string& architecture() const { return architecture_; }
  const std::string& where() const { return where_; }
  std::string key(std::string_view name) const { return fmt::format("{}.{}", architecture_, name); }
  bool has(std::string_view name) const { return file_.find_metadata(key(name)) != nullptr; }
  int64_t integer(std::string_view name) const { return file_.get<int64_t>(key(name)); }
  int64_t integer_or(std::string_view name, int64_t fallback) const {
    return file_.get_or<int64_t>(key(name), fallback);
  }
  double number_or(std::string_view name, double fallback) const {
    return file_.get_or<double>(key(name), fallback);
  }
  std::string text_or(std::string_view name, const std::string& fallback) const {
    return file_.get_or<std::string>(key(name), fallback);
  }
  /// A key that may hold one number or one a layer; layers that differ are refused.
  int64_t uniform(std::string_view name) const {
    const GgufValue* value = file_.find_metadata(key(name));
    if (value == nullptr || !value->is_array()) return integer(name);
    const auto numbers = file_.get<std::vector<int64_t>>(key(name));
    require(!numbers.empty() && std::ranges::all_of(numbers, [&](int64_t n) { return n == numbers.front(); }),
            "{}: {} differs between layers, which is not supported", where_, key(name));
    return numbers.front();
  }

 private:
  const GgufFile& file_;
  std::string where_, architecture_;
};

// What config.json calls a field, GGUF calls a key: errors name what the file has.
ModelConfig from_json_of(const Reader& reader, const Json& json) {
  try {
    return ModelConfig::from_json(json, reader.where());
  } catch (const Error& error) {
    std::string text = error.what();
    for (const auto& [field, key] : {std::pair{"hidden_size", "embedding_length"},
                                     {"intermediate_size", "feed_forward_length"},
                                     {"num_hidden_layers", "block_count"},
                                     {"num_attention_heads", "attention.head_count"},
                                     {"num_key_value_heads", "attention.head_count_kv"},
                                     {"head_dim", "attention.key_length"},
                                     {"max_position_embeddings", "context_length"},
                                     {"rms_norm_eps", "attention.layer_norm_rms_epsilon"},
                                     {"rope_theta", "rope.freq_base"}})
      for (const std::string& name : {fmt::format("\"{}\"", field), fmt::format(" {} ", field)})
        if (const size_t at = text.find(name); at != std::string::npos)
          text.replace(at + 1, name.size() - 2, reader.key(key));
    fail("{}", text);
  }
}

// The narrowest type that holds the weights exactly: FP32 for quantised files.
std::string dtype_of(const GgufFile& file) {
  const TensorInfo* tensor = file.find("blk.0.ffn_down.weight");
  if (tensor == nullptr) tensor = file.find("token_embd.weight");
  if (tensor != nullptr && tensor->type == "BF16") return "bfloat16";
  if (tensor != nullptr && tensor->type == "F16") return "float16";
  return "float32";
}

// rope_freqs.weight divides each frequency. The llama3 rule has two free numbers once low_freq_factor is 1
// (its rule is unchanged when original context, low and high factor grow together), so the original context
// is looked for among powers of two with the usual high factor of 4. What does not fit stays a list of
// divisors.
RopeConfig rope_from_divisors(const GgufFile& file, const TensorInfo& tensor, RopeConfig rope,
                              int64_t head_dim) {
  std::vector<float> divisors(static_cast<size_t>(tensor.elements()));
  const auto count = static_cast<size_t>(static_cast<double>(head_dim) * rope.partial) / 2;
  require(tensor.shape.size() == 1 && divisors.size() == count,
          "{}: {} has {} values; RoPE has {} frequencies", file.path().string(), tensor.name, divisors.size(),
          count);
  file.read_rows(tensor, 0, divisors);
  require(std::ranges::all_of(divisors, [](float d) { return std::isfinite(d) && d > 0; }),
          "{}: {} must hold positive numbers", file.path().string(), tensor.name);
  require(rope.scaling == RopeConfig::Scaling::None, "{}: rope_freqs.weight beside {} is not supported",
          file.path().string(), "another RoPE scaling");
  const float largest = *std::ranges::max_element(divisors);
  if (std::ranges::all_of(divisors, [](float d) { return d == 1; })) return rope;

  const std::vector<float> plain = rope.inverse_frequencies(head_dim);
  for (int exponent = 4; exponent <= 20; ++exponent) {
    RopeConfig candidate = rope;
    candidate.scaling = RopeConfig::Scaling::Llama3;
    candidate.factor = std::round(largest * 1e4) / 1e4;
    candidate.original_positions = std::ldexp(1, exponent);
    const std::vector<float> scaled = candidate.inverse_frequencies(head_dim);
    const auto fits = [&](size_t i) {  // both computed in FP32 by some twenty roundings
      return std::abs(plain[i] / divisors[i] - scaled[i]) <= 4e-6f * scaled[i];
    };
    size_t i = 0;
    while (i < divisors.size() && fits(i)) ++i;
    if (i == divisors.size()) return candidate;
  }
  rope.scaling = RopeConfig::Scaling::Divisors;
  rope.divisors.assign(divisors.begin(), divisors.end());
  return rope;
}

Json scaling_json(const Reader& reader) {
  const std::string type = reader.text_or("rope.scaling.type", "none");
  if (type == "none") {
    const double legacy = reader.number_or("rope.scale_linear", 1);
    return legacy == 1 ? Json() : Json{{"rope_type", "linear"}, {"factor", legacy}};
  }
  Json scaling = {{"rope_type", type}, {"factor", reader.number_or("rope.scaling.factor", 1)}};
  if (type == "yarn") {
    if (reader.has("rope.scaling.original_context_length"))
      scaling["original_max_position_embeddings"] = reader.integer("rope.scaling.original_context_length");
    for (const auto& [key, field] : {std::pair{"rope.scaling.yarn_beta_fast", "beta_fast"},
                                     {"rope.scaling.yarn_beta_slow", "beta_slow"}})
      if (reader.has(key)) scaling[field] = reader.number_or(key, 0);
    // llama.cpp multiplies YaRN's own factor by these; no model of the table has them.
    for (const char* key :
         {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"})
      require(reader.number_or(key, 1) == 1, "{}: {} other than 1 is not supported", reader.where(),
              reader.key(key));
    require(reader.number_or("rope.scaling.yarn_log_multiplier", 0) == 0, "{}: {} is not supported",
            reader.where(), reader.key("rope.scaling.yarn_log_multiplier"));
  }
  return scaling;
}

// llama files are Llama, Mistral and Mixtral; only experts and windows tell them apart.
const Architecture& row_of(const Reader& reader, const GgufFile& file) {
  if (reader.architecture() == "llama") {
    if (reader.integer_or("expert_count", 0) > 0) return *find_architecture("mixtral");
    return *find_architecture(reader.integer_or("attention.sliding_window", 0) > 0 ? "mistral" : "llama");
  }
  for (const Architecture& row : architecture_table())
    if (row.gguf == reader.architecture()) return row;
  std::string names;
  for (const Architecture& row : architecture_table())
    if (names.find(row.gguf) == names.npos) names += (names.empty() ? "" : ", ") + std::string(row.gguf);
  fail("{}: GGUF architecture \"{}\" is not supported; supported are {}", file.path().string(),
       reader.architecture(), names);
}

void read_windows(const Reader& reader, const GgufFile& file, const Architecture& row, int64_t layers,
                  Json& json) {
  const int64_t window = reader.integer_or("attention.sliding_window", 0);
  json["sliding_window"] = window > 0 ? Json(window) : Json();
  if (row.window == Architecture::Window::Gated || row.window == Architecture::Window::GatedAll)
    json["use_sliding_window"] = false;  // llama.cpp runs these families with full attention
  if (row.window != Architecture::Window::Alternating) return;
  // The key holds a period, or one flag a layer.
  const std::string key = reader.key("attention.sliding_window_pattern");
  const GgufValue* value = file.find_metadata(key);
  const auto* flags = value == nullptr ? nullptr : std::get_if<std::vector<bool>>(&value->data);
  const int64_t period = flags == nullptr ? file.get_or<int64_t>(key, 6) : 1;
  require(period > 0 && (flags == nullptr || static_cast<int64_t>(flags->size()) == layers),
          "{}: {} must be a period or one flag a layer", reader.where(), key);
  Json types = Json::array();
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool sliding = flags == nullptr ? (layer + 1) % period != 0 : (*flags)[static_cast<size_t>(layer)];
    types.push_back(window > 0 && sliding ? "sliding_attention" : "full_attention");
  }
  json["layer_types"] = types;
}

void read_experts(const Reader& reader, const GgufFile& file, const Architecture& row, int64_t layers,
                  Json& json) {
  const int64_t experts = reader.integer("expert_count");
  json["num_local_experts"] = experts;
  json["num_experts_per_tok"] = reader.integer("expert_used_count");
  json["moe_intermediate_size"] =
      reader.integer_or("expert_feed_forward_length", reader.integer("feed_forward_length"));
  const GgufValue* normalized = file.find_metadata(reader.key("expert_weights_norm"));
  json["norm_topk_prob"] = normalized == nullptr || file.get<bool>(reader.key("expert_weights_norm"));
  require(reader.integer_or("expert_shared_count", 0) == 0, "{}: shared experts are not supported",
          reader.where());
  require(reader.integer_or("expert_gating_func", 1) == 1,
          "{}: expert gating other than softmax is not supported", reader.where());
  if (row.name == "mixtral") return;
  Json dense = Json::array();  // no key says which layers are dense; their tensors do
  for (int64_t layer = 0; layer < layers; ++layer)
    if (file.find(fmt::format("blk.{}.ffn_gate_inp.weight", layer)) == nullptr) dense.push_back(layer);
  json["mlp_only_layers"] = dense;
}

// The embedding's rows are what the model computes with; what else counts tokens may contradict them.
void check_vocabulary(const Reader& reader, const GgufFile& file, int64_t rows) {
  if (const int64_t count = reader.integer_or("vocab_size", rows); count != rows)
    log_warn("{}: {} is {}, but token_embd.weight has {} rows, which are taken for the vocabulary",
             reader.where(), reader.key("vocab_size"), count, rows);
  const GgufValue* value = file.find_metadata("tokenizer.ggml.tokens");
  const auto* tokens = value == nullptr ? nullptr : std::get_if<std::vector<std::string>>(&value->data);
  if (tokens == nullptr || std::ssize(*tokens) == rows) return;
  require(std::ssize(*tokens) < rows,
          "{}: tokenizer.ggml.tokens has {} tokens, token_embd.weight only {} rows; convert the model again",
          reader.where(), tokens->size(), rows);
  log_warn("{}: tokenizer.ggml.tokens has {} tokens, token_embd.weight {} rows: ids from {} on have no text",
           reader.where(), tokens->size(), rows, tokens->size());
}

}  // namespace

ModelConfig config_from_gguf(const GgufFile& file) {
  const Reader reader(file);
  const std::string& where = reader.where();
  require(file.get_or<int64_t>("split.count", 1) <= 1,
          "{}: this is one part of a split GGUF; join the parts first", where);
  const Architecture& row = row_of(reader, file);
  const TensorInfo* embedding = file.find("token_embd.weight");
  require(embedding != nullptr && embedding->shape.size() == 2,
          "{}: tensor token_embd.weight is missing or no matrix", where);
  check_vocabulary(reader, file, embedding->shape[0]);

  Json json = {
      {"model_type", row.name},
      {"vocab_size", embedding->shape[0]},
      {"hidden_size", reader.integer("embedding_length")},
      {"intermediate_size", reader.has("feed_forward_length") ? reader.uniform("feed_forward_length")
                                                              : reader.integer("expert_feed_forward_length")},
      {"num_hidden_layers", reader.integer("block_count")},
      {"num_attention_heads", reader.uniform("attention.head_count")},
      {"max_position_embeddings", reader.integer("context_length")},
      {"rms_norm_eps", reader.number_or("attention.layer_norm_rms_epsilon", row.norm_epsilon)},
      {"rope_theta", reader.number_or("rope.freq_base", 10000)},
      {"rope_scaling", scaling_json(reader)},
      {"tie_word_embeddings", file.find("output.weight") == nullptr},
      {"torch_dtype", dtype_of(file)}};
  const int64_t layers = reader.integer("block_count"), heads = reader.uniform("attention.head_count");
  require(layers > 0 && layers <= 1024 && heads > 0, "{}: {} layers and {} heads are out of range", where,
          layers, heads);
  json["num_key_value_heads"] =
      reader.has("attention.head_count_kv") ? reader.uniform("attention.head_count_kv") : heads;
  const int64_t head_dim =
      reader.integer_or("attention.key_length", reader.integer("embedding_length") / heads);
  require(head_dim > 0 && reader.integer_or("attention.value_length", head_dim) == head_dim,
          "{}: keys and values of different width are not supported", where);
  json["head_dim"] = head_dim;
  const int64_t rotated = reader.integer_or("rope.dimension_count", head_dim);
  if (rotated != head_dim)
    json["partial_rotary_factor"] = static_cast<double>(rotated) / static_cast<double>(head_dim);
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "logit_scale",
                          "residual_scale", "attention.max_alibi_bias", "attention.clamp_kqv"})
    require(reader.number_or(key, 0) == 0, "{}: {} is not supported", where, reader.key(key));
  require(row.scaled_embedding || (!reader.has("attention.scale") && !reader.has("embedding_scale")),
          "{}: an attention or embedding scale of its own is not supported for {}", where,
          reader.architecture());
  if (row.bias == Architecture::Bias::Optional)
    json["attention_bias"] = file.find("blk.0.attn_q.bias") != nullptr;
  if (row.mlp_bias) json["mlp_bias"] = file.find("blk.0.ffn_gate.bias") != nullptr;
  if (row.moe) read_experts(reader, file, row, layers, json);
  read_windows(reader, file, row, layers, json);
  if (row.scaled_embedding) {
    json["rope_local_base_freq"] = reader.number_or("rope.freq_base_swa", row.local_theta);
    // llama.cpp's rule: Gemma 3 27B, known by its 62 layers, scales by hidden / heads instead of head_dim.
    const double scale = reader.number_or("attention.scale", 0);
    json["query_pre_attn_scalar"] = scale > 0 ? 1 / (scale * scale)
                                    : layers == 62
                                        ? static_cast<double>(reader.integer("embedding_length") / heads)
                                        : static_cast<double>(head_dim);
    json["embedding_scale"] = reader.number_or(
        "embedding_scale", std::sqrt(static_cast<float>(reader.integer("embedding_length"))));
    json["rms_norm_offset"] = 0;
  }
  for (const auto& [key, field] : {std::pair{"tokenizer.ggml.bos_token_id", "bos_token_id"},
                                   {"tokenizer.ggml.eos_token_id", "eos_token_id"},
                                   {"tokenizer.ggml.padding_token_id", "pad_token_id"}})
    if (file.find_metadata(key) != nullptr) json[field] = file.get<int64_t>(key);

  ModelConfig config = from_json_of(reader, json);
  const TensorInfo* long_factors = file.find("rope_factors_long.weight");
  const TensorInfo* divisors = file.find("rope_freqs.weight");
  require(long_factors == nullptr, "{}: rope_factors_long.weight (longrope) is not supported", where);
  if (divisors != nullptr) {
    config.rope = rope_from_divisors(file, *divisors, config.rope, config.head_dim);
    if (!row.scaled_embedding) config.local_rope = config.rope;
  }
  return config;
}

}  // namespace quatrain
