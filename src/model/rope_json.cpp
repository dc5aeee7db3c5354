#include "model/rope_json.h"

#include "model/json_field.h"

namespace quatrain {
namespace {

using Scaling = RopeConfig::Scaling;

std::string rope_type_of(const Json& parameters, std::string_view where) {
  const std::string type =
      json_string_or(parameters, "rope_type", json_string_or(parameters, "type", "default", where), where);
  return type.empty() || type == "none" ? "default" : type;
}

double positive(const Json& json, std::string_view key, double fallback, std::string_view where) {
  const double value = json_number_or(json, key, fallback, where);
  require(value != 0 || json_field(json, key) != nullptr, "{}: field \"{}\" is missing", where, key);
  require(value > 0, "{}: field \"{}\" must be positive, not {}", where, key, value);
  return value;
}

// longrope changes its frequencies with the length of the sequence, which a KV cache cannot follow; equal
// lists are plain divisors.
void read_longrope(const Json& parameters, RopeConfig& rope, std::string_view where) {
  const Json* short_factor = json_field(parameters, "short_factor");
  const Json* long_factor = json_field(parameters, "long_factor");
  require(short_factor != nullptr && long_factor != nullptr && short_factor->is_array() &&
              *short_factor == *long_factor && json_number_or(parameters, "attention_factor", 0, where) == 1,
          "{}: rope_type \"longrope\" (frequencies that depend on the sequence's length) is not supported",
          where);
  rope.scaling = Scaling::Divisors;
  for (const Json& divisor : *short_factor) {
    require(divisor.is_number() && divisor.get<double>() > 0,
            "{}: field \"short_factor\" must hold positive numbers", where);
    rope.divisors.push_back(divisor.get<double>());
  }
}

RopeConfig read_rope(const Json& parameters, double theta, double partial, const Json& json,
                     int64_t max_positions, bool phi3, std::string_view where) {
  RopeConfig rope;
  rope.theta = positive(parameters, "rope_theta", theta, where);
  rope.partial = positive(parameters, "partial_rotary_factor", partial, where);
  require(rope.partial <= 1, "{}: field \"partial_rotary_factor\" must be at most 1, not {}", where,
          rope.partial);
  require(json_field(parameters, "mrope_section") == nullptr,
          "{}: multimodal RoPE (mrope_section) is not supported", where);
  const std::string type = rope_type_of(parameters, where);
  if (type == "default") return rope;
  if (type == "longrope" || type == "su" || (phi3 && type == "yarn")) {
    read_longrope(parameters, rope, where);
    return rope;
  }
  // transformers gives priority to the field outside rope_parameters, and falls back to the whole context.
  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  rope.original_positions = static_cast<double>(
      json_integer_or(json, kOriginal, json_integer_or(parameters, kOriginal, max_positions, where), where));
  require(rope.original_positions > 0, "{}: field \"{}\" must be positive", where, kOriginal);
  if (type == "linear") {
    rope.scaling = Scaling::Linear;
    rope.original_positions = 0;
    rope.factor = positive(parameters, "factor", 0, where);
    if (rope.factor == 1) return RopeConfig{.theta = rope.theta, .partial = rope.partial};
  } else if (type == "llama3") {
    rope.scaling = Scaling::Llama3;
    rope.factor = positive(parameters, "factor", 0, where);
    rope.low_frequency_factor = positive(parameters, "low_freq_factor", 0, where);
    rope.high_frequency_factor = positive(parameters, "high_freq_factor", 0, where);
    require(rope.high_frequency_factor > rope.low_frequency_factor,
            "{}: field \"high_freq_factor\" must exceed \"low_freq_factor\"", where);
  } else if (type == "yarn") {
    rope.scaling = Scaling::Yarn;
    rope.factor =
        positive(parameters, "factor", static_cast<double>(max_positions) / rope.original_positions, where);
    if (json_field(parameters, "attention_factor") != nullptr)
      rope.attention_factor = positive(parameters, "attention_factor", 1, where);
    // Zero stands for absent, as in the reference.
    rope.beta_fast = json_number_or(parameters, "beta_fast", 0, where);
    rope.beta_slow = json_number_or(parameters, "beta_slow", 0, where);
    if (rope.beta_fast == 0) rope.beta_fast = 32;
    if (rope.beta_slow == 0) rope.beta_slow = 1;
    require(rope.beta_slow > 0 && rope.beta_fast >= rope.beta_slow,
            "{}: fields \"beta_fast\" and \"beta_slow\" must be positive, fast not below slow", where);
    rope.mscale = json_number_or(parameters, "mscale", 0, where);
    rope.mscale_all_dim = json_number_or(parameters, "mscale_all_dim", 0, where);
    rope.truncate = json_bool_or(parameters, "truncate", true, where);
    require(rope.theta > 1, "{}: field \"rope_theta\" must exceed 1 for yarn", where);
  } else {
    fail("{}: rope_type \"{}\" is not supported; supported are default, linear, llama3, yarn", where, type);
  }
  return rope;
}

const char* type_name(Scaling scaling) {
  switch (scaling) {
    case Scaling::None:
      return "default";
    case Scaling::Linear:
      return "linear";
    case Scaling::Llama3:
      return "llama3";
    case Scaling::Yarn:
      return "yarn";
    case Scaling::Divisors:
      return "longrope";
  }
  return "";
}

// What rope_scaling holds; rope_theta and partial_rotary_factor lie beside it in the old style.
Json scaling_json(const RopeConfig& rope) {
  Json json = {{"rope_type", type_name(rope.scaling)}};
  switch (rope.scaling) {
    case Scaling::None:
      break;
    case Scaling::Linear:
      json["factor"] = rope.factor;
      break;
    case Scaling::Llama3:
      json["factor"] = rope.factor;
      json["low_freq_factor"] = rope.low_frequency_factor;
      json["high_freq_factor"] = rope.high_frequency_factor;
      break;
    case Scaling::Yarn:
      json["factor"] = rope.factor;
      json["beta_fast"] = rope.beta_fast;
      json["beta_slow"] = rope.beta_slow;
      json["truncate"] = rope.truncate;
      if (rope.attention_factor != 0) json["attention_factor"] = rope.attention_factor;
      if (rope.mscale != 0) json["mscale"] = rope.mscale;
      if (rope.mscale_all_dim != 0) json["mscale_all_dim"] = rope.mscale_all_dim;
      break;
    case Scaling::Divisors:
      json["short_factor"] = rope.divisors;
      json["long_factor"] = rope.divisors;
      json["attention_factor"] = 1.0;
      break;
  }
  if (rope.original_positions != 0)
    json["original_max_position_embeddings"] = static_cast<int64_t>(rope.original_positions);
  return json;
}

}  // namespace

void rope_from_json(const Json& json, const Architecture& architecture, ModelConfig& config,
                    std::string_view where) {
  const bool phi3 = architecture.name == "phi3";
  const double partial = json_number_or(json, "partial_rotary_factor", 1, where);
  const double theta = json_number_or(json, "rope_theta", architecture.theta, where);
  const bool two = architecture.window == Architecture::Window::Alternating;
  const double local_theta =
      two ? json_number_or(json, "rope_local_base_freq", architecture.local_theta, where) : theta;
  const Json empty = Json::object();
  const auto parameters_of = [&](std::string_view key) -> const Json& {
    const Json* field = json_field(json, key);
    if (field == nullptr) return empty;
    require(field->is_object(), "{}: field \"{}\" must be an object", where, key);
    return *field;
  };
  const auto read = [&](const Json& parameters, double base) {
    return read_rope(parameters, base, partial, json, config.max_positions, phi3, where);
  };
  const Json& parameters = parameters_of("rope_parameters");
  if (parameters.contains("full_attention") || parameters.contains("sliding_attention")) {
    for (const auto& [layer_type, value] : parameters.items())
      require(value.is_object(),
              "{}: rope_parameters of \"{}\" must be an object (layers without RoPE are not supported)",
              where, layer_type);
    const auto of_type = [&](const char* layer_type) -> const Json& {
      return parameters.contains(layer_type) ? parameters[layer_type] : empty;
    };
    config.rope = read(of_type("full_attention"), theta);
    config.local_rope = parameters.contains("sliding_attention") || two
                            ? read(of_type("sliding_attention"), local_theta)
                            : config.rope;
    return;
  }
  const Json& scaling = parameters_of("rope_scaling");
  config.rope = read(parameters.empty() ? scaling : parameters, theta);
  // Readers disagree on which of the two goes first.
  require(parameters.empty() || scaling.empty() ||
              read_rope(scaling, config.rope.theta, config.rope.partial, json, config.max_positions, phi3,
                        where) == config.rope,
          "{}: fields \"rope_parameters\" and \"rope_scaling\" contradict each other; remove the wrong one",
          where);
  // Gemma's scaling concerns the global layers only.
  config.local_rope = two ? RopeConfig{.theta = local_theta, .partial = partial} : config.rope;
}

void rope_to_json(const ModelConfig& config, const Architecture& architecture, Json& json) {
  const bool two = architecture.window == Architecture::Window::Alternating;
  const RopeConfig plain_local{.theta = config.local_rope.theta, .partial = config.rope.partial};
  if (!(two ? config.local_rope == plain_local : config.local_rope == config.rope)) {
    const auto full = [](const RopeConfig& rope) {
      Json parameters = scaling_json(rope);
      parameters["rope_theta"] = rope.theta;
      parameters["partial_rotary_factor"] = rope.partial;
      return parameters;
    };
    json["rope_parameters"] = {{"full_attention", full(config.rope)},
                               {"sliding_attention", full(config.local_rope)}};
    return;
  }
  json["rope_theta"] = config.rope.theta;
  if (two) json["rope_local_base_freq"] = config.local_rope.theta;
  if (config.rope.partial != 1) json["partial_rotary_factor"] = config.rope.partial;
  json["rope_scaling"] = config.rope.scaling == Scaling::None ? Json() : scaling_json(config.rope);
}

}  // namespace quatrain
