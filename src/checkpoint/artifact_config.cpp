// quantization_config to and from JSON (docs/artifact.md). Fields that equal what they default to are left
// out; unknown fields are errors, since a reader that skipped one would compute other numbers.
#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <initializer_list>

#include "base/error.h"
#include "checkpoint/artifact.h"

namespace quatrain {
namespace {

constexpr int64_t kMaxWidth = int64_t{1} << 31;  // no group, order or block is wider than a matrix can be

void require_object(const Json& json, std::initializer_list<std::string_view> fields,
                    const std::string& where) {
  require(json.is_object(), "{}: must be an object", where);
  for (const auto& [key, value] : json.items())
    require(std::find(fields.begin(), fields.end(), key) != fields.end(),
            "{}: unknown field \"{}\"; the artifact needs a newer reader, or the field is misspelt", where,
            key);
}

int64_t whole(const Json& json, std::string_view field, int64_t fallback, int64_t low, int64_t high,
              const std::string& where) {
  const auto found = json.find(std::string(field));
  if (found == json.end()) return fallback;
  require(found->is_number_integer(), "{}.{}: must be a whole number, is {}", where, field,
          found->dump().substr(0, 40));
  const auto value = json_whole<int64_t>(*found);
  require(value && *value >= low && *value <= high, "{}.{}: {} is not within {} and {}", where, field,
          found->dump(), low, high);
  return *value;
}

// Columns of a linear that share something. Powers of two, so that each of two sizes divides or is divided by
// the other: integer sums are split at the finest.
int64_t columns_together(const Json& json, std::string_view field, int64_t fallback, bool or_row,
                         const std::string& where) {
  constexpr int64_t kFewest = 16, kMost = 1024;
  const int64_t columns = whole(json, field, fallback, 0, kMaxWidth, where);
  const bool legal =
      columns >= kFewest && columns <= kMost && std::has_single_bit(static_cast<uint64_t>(columns));
  require(legal || (or_row && columns == 0),
          "{}.{}: {} columns; the format has {}powers of two from {} to {}", where, field, columns,
          or_row ? "0 (the whole row) and " : "", kFewest, kMost);
  return columns;
}

int bit_width(const Json& json, std::string_view field, int fallback, const std::string& where) {
  const auto bits = static_cast<int>(whole(json, field, fallback, 4, 16, where));
  require(bits == 4 || bits == 8 || bits == 16, "{}.{}: {} bits; 4, 8 and 16 (unquantised) exist", where,
          field, bits);
  return bits;
}

bool truth(const Json& json, std::string_view field, bool fallback, const std::string& where) {
  const auto found = json.find(std::string(field));
  if (found == json.end()) return fallback;
  require(found->is_boolean(), "{}.{}: must be true or false", where, field);
  return found->get<bool>();
}

std::string text(const Json& json, std::string_view field, const std::string& fallback,
                 const std::string& where) {
  const auto found = json.find(std::string(field));
  if (found == json.end()) return fallback;
  require(found->is_string(), "{}.{}: must be a string", where, field);
  return found->get<std::string>();
}

Json transform_json(const Transform& transform) {
  Json json = {{"kind", transform.kind}};
  if (transform.order != 0) json["order"] = transform.order;
  if (transform.tensor.empty() && transform.kind != "none")
    json["seed"] = transform.seed;
  else if (!transform.tensor.empty())
    json["tensor"] = transform.tensor;
  return json;
}

// Always the whole transform: fields of another kind's default would be meaningless.
Transform read_transform(const Json& parent, std::string_view field, const Transform& fallback,
                         const std::string& parent_where) {
  const auto found = parent.find(std::string(field));
  if (found == parent.end()) return fallback;
  const std::string where = fmt::format("{}.{}", parent_where, field);
  require_object(*found, {"kind", "order", "seed", "tensor"}, where);
  Transform transform;
  transform.kind = text(*found, "kind", "", where);
  require(!transform.kind.empty(), "{}.kind: is missing", where);
  transform.order = whole(*found, "order", 0, 0, kMaxWidth, where);
  transform.tensor = text(*found, "tensor", "", where);
  if (const auto seed = found->find("seed"); seed != found->end()) {
    require(seed->is_number_unsigned(), "{}.seed: must be a whole number from 0 to 2^64 - 1", where);
    transform.seed = seed->get<uint64_t>();
  }
  return transform;
}

Json activation_json(const ActivationPolicy& policy) {
  return {{"bits", policy.bits}, {"group", policy.group}, {"symmetric", policy.symmetric}};
}

// What an artifact's arithmetic depends on is never left to a default.
void require_fields(const Json& json, std::initializer_list<const char*> fields, const std::string& where) {
  for (const char* field : fields) require(json.contains(field), "{}.{}: is missing", where, field);
}

ActivationPolicy read_activation(const Json& parent, const ActivationPolicy& fallback,
                                 const std::string& parent_where) {
  const auto found = parent.find("activation");
  if (found == parent.end()) return fallback;
  const std::string where = parent_where + ".activation";
  require_object(*found, {"bits", "group", "symmetric"}, where);
  require_fields(*found, {"bits", "group", "symmetric"}, where);
  ActivationPolicy policy;
  policy.bits = bit_width(*found, "bits", fallback.bits, where);
  policy.group = columns_together(*found, "group", fallback.group, true, where);
  policy.symmetric = truth(*found, "symmetric", fallback.symmetric, where);
  return policy;
}

Json linear_json(const LinearPolicy& policy, const LinearPolicy& fallback) {
  Json json = Json::object();
  if (policy.weight_group != fallback.weight_group) json["weight_group"] = policy.weight_group;
  if (policy.residual_block != fallback.residual_block) json["residual_block"] = policy.residual_block;
  if (!(policy.activation == fallback.activation)) json["activation"] = activation_json(policy.activation);
  if (!(policy.input_transform == fallback.input_transform))
    json["input_transform"] = transform_json(policy.input_transform);
  return json;
}

LinearPolicy read_linear(const Json& json, const LinearPolicy& fallback, const std::string& where) {
  require_object(json, {"weight_group", "residual_block", "activation", "input_transform"}, where);
  LinearPolicy policy;
  policy.weight_group = columns_together(json, "weight_group", fallback.weight_group, true, where);
  policy.residual_block = columns_together(json, "residual_block", fallback.residual_block, false, where);
  policy.activation = read_activation(json, fallback.activation, where);
  policy.input_transform = read_transform(json, "input_transform", fallback.input_transform, where);
  return policy;
}

Json kv_json(const KvPolicy& policy, const KvPolicy& fallback) {
  Json json = Json::object();
  if (policy.bits != fallback.bits) json["bits"] = policy.bits;
  if (policy.group != fallback.group) json["group"] = policy.group;
  if (policy.symmetric != fallback.symmetric) json["symmetric"] = policy.symmetric;
  if (!(policy.key_transform == fallback.key_transform))
    json["key_transform"] = transform_json(policy.key_transform);
  if (!(policy.value_transform == fallback.value_transform))
    json["value_transform"] = transform_json(policy.value_transform);
  if (policy.sink_tokens != fallback.sink_tokens) json["sink_tokens"] = policy.sink_tokens;
  return json;
}

// "layers" is read by the caller, who has excluded it from `json` of a single layer.
KvPolicy read_kv(const Json& json, const KvPolicy& fallback, const std::string& where) {
  KvPolicy policy;
  policy.bits = bit_width(json, "bits", fallback.bits, where);
  policy.group = whole(json, "group", fallback.group, 0, kMaxWidth, where);
  policy.symmetric = truth(json, "symmetric", fallback.symmetric, where);
  policy.key_transform = read_transform(json, "key_transform", fallback.key_transform, where);
  policy.value_transform = read_transform(json, "value_transform", fallback.value_transform, where);
  policy.sink_tokens = whole(json, "sink_tokens", fallback.sink_tokens, 0, kMaxWidth, where);
  return policy;
}

int layer_number(const std::string& text, const std::string& where) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  require(error == std::errc() && end == text.data() + text.size() && number >= 0,
          "{}: \"{}\" is no layer number", where, text);
  return number;
}

}  // namespace

const LinearPolicy& QuantizationConfig::linear(std::string_view name) const {
  const auto found = linears.find(std::string(name));
  return found == linears.end() ? defaults : found->second;
}

const KvPolicy& QuantizationConfig::kv_of(int layer) const {
  const auto found = kv_layers.find(layer);
  return found == kv_layers.end() ? kv : found->second;
}

std::set<std::string> QuantizationConfig::transform_tensors() const {
  std::set<std::string> names;
  const auto add = [&](const Transform& transform) {
    if (!transform.tensor.empty()) names.insert(transform.tensor);
  };
  const auto add_kv = [&](const KvPolicy& policy) {
    add(policy.key_transform);
    add(policy.value_transform);
  };
  add(defaults.input_transform);
  for (const auto& [name, policy] : linears) add(policy.input_transform);
  add_kv(kv);
  for (const auto& [layer, policy] : kv_layers) add_kv(policy);
  return names;
}

Json QuantizationConfig::to_json() const {
  Json json = {{"quant_method", "quatrain"},
               {"version", kVersion},
               {"recipe", recipe},
               {"bits_per_weight", bits_per_weight}};
  Json& out = json["defaults"] = linear_json(defaults, {});
  out["weight_group"] = defaults.weight_group;
  out["residual_block"] = defaults.residual_block;
  out["activation"] = activation_json(defaults.activation);
  json["linears"] = Json::object();
  for (const auto& [name, policy] : linears) json["linears"][name] = linear_json(policy, defaults);
  json["kv"] = kv_json(kv, {});
  json["kv"]["bits"] = kv.bits;
  json["kv"]["group"] = kv.group;
  json["kv"]["sink_tokens"] = kv.sink_tokens;
  json["kv"]["layers"] = Json::object();
  for (const auto& [layer, policy] : kv_layers)
    json["kv"]["layers"][std::to_string(layer)] = kv_json(policy, kv);
  json["embedding"] = {{"bits", embedding_bits}};
  json["lm_head"] = {{"bits", lm_head_bits}, {"tied", lm_head_tied}};
  json["unquantized"] = unquantized;
  return json;
}

QuantizationConfig QuantizationConfig::from_json(const Json& json, std::string_view where_text) {
  const std::string where = fmt::format("{}: quantization_config", where_text);
  require(json.is_object() && text(json, "quant_method", "", where) == "quatrain",
          "{}.quant_method: must be \"quatrain\"", where);
  // The version comes first: a later one may have other fields.
  require(json.contains("version"), "{}.version: is missing", where);
  require(json["version"] == kVersion,
          "{}.version: {} was written by another release; this one reads version {}", where,
          json["version"].dump().substr(0, 40), kVersion);
  require_object(json,
                 {"quant_method", "version", "recipe", "bits_per_weight", "defaults", "linears", "kv",
                  "embedding", "lm_head", "unquantized"},
                 where);
  QuantizationConfig config;
  config.recipe = text(json, "recipe", "", where);
  if (json.contains("bits_per_weight")) {
    require(json["bits_per_weight"].is_number(), "{}.bits_per_weight: must be a number", where);
    config.bits_per_weight = json["bits_per_weight"].get<double>();
    require(std::isfinite(config.bits_per_weight) && config.bits_per_weight >= 0, "{}.bits_per_weight: is {}",
            where, config.bits_per_weight);
  }
  require(json.contains("defaults"), "{}.defaults: is missing", where);
  require_object(json["defaults"], {"weight_group", "residual_block", "activation", "input_transform"},
                 where + ".defaults");
  require_fields(json["defaults"], {"weight_group", "residual_block", "activation"}, where + ".defaults");
  config.defaults = read_linear(json["defaults"], {}, where + ".defaults");
  if (json.contains("linears")) {
    require(json["linears"].is_object(), "{}.linears: must be an object", where);
    for (const auto& [name, policy] : json["linears"].items())
      config.linears.emplace(name,
                             read_linear(policy, config.defaults, fmt::format("{}.linears.{}", where, name)));
  }

  require(json.contains("kv"), "{}.kv: is missing", where);
  const std::string kv_where = where + ".kv";
  require_object(json["kv"],
                 {"bits", "group", "symmetric", "key_transform", "value_transform", "sink_tokens", "layers"},
                 kv_where);
  require_fields(json["kv"], {"bits", "group"}, kv_where);
  config.kv = read_kv(json["kv"], {}, kv_where);
  if (json["kv"].contains("layers")) {
    require(json["kv"]["layers"].is_object(), "{}.layers: must be an object", kv_where);
    for (const auto& [layer, policy] : json["kv"]["layers"].items()) {
      const std::string layer_where = fmt::format("{}.layers.{}", kv_where, layer);
      require_object(policy,
                     {"bits", "group", "symmetric", "key_transform", "value_transform", "sink_tokens"},
                     layer_where);
      const int number = layer_number(layer, kv_where + ".layers");
      require(config.kv_layers.emplace(number, read_kv(policy, config.kv, layer_where)).second,
              "{}: names layer {} twice", layer_where, number);
    }
  }

  if (json.contains("embedding")) {
    require_object(json["embedding"], {"bits"}, where + ".embedding");
    config.embedding_bits = bit_width(json["embedding"], "bits", 16, where + ".embedding");
  }
  if (json.contains("lm_head")) {
    require_object(json["lm_head"], {"bits", "tied"}, where + ".lm_head");
    config.lm_head_bits = bit_width(json["lm_head"], "bits", 16, where + ".lm_head");
    config.lm_head_tied = truth(json["lm_head"], "tied", false, where + ".lm_head");
  }
  if (json.contains("unquantized")) {
    require(json["unquantized"].is_array(), "{}.unquantized: must be a list", where);
    for (const Json& name : json["unquantized"]) {
      require(name.is_string(), "{}.unquantized: {} is not a name", where, name.dump().substr(0, 40));
      config.unquantized.push_back(name.get<std::string>());
    }
  }
  return config;
}

}  // namespace quatrain
