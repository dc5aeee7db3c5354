#include "checkpoint/packed/packed_config.h"

#include <regex>

#include "base/error.h"
#include "base/log.h"

namespace quatrain {
namespace {

constexpr size_t kLongestPattern = 200;

int bits_of(const Json& json, std::string_view key, std::string_view where, std::string_view method) {
  const int bits = json_get<int>(json, key, where);
  require(bits == 4 || bits == 8, "{}: field \"{}\": {} weights of {} bits are not read; 4 and 8 are", where,
          key, method, bits);
  return bits;
}

// -1, 0 and null all mean the whole row.
int64_t group_of(const Json& json, std::string_view key, std::string_view where) {
  const auto group = json_get_or<int64_t>(json, key, -1, where);
  require(group >= -1 && group <= (int64_t{1} << 20), "{}: field \"{}\": {} is no group size", where, key,
          group);
  return std::max<int64_t>(group, 0);
}

PackedConfig gptq(const Json& json, const std::string& where) {
  PackedConfig config{.method = PackedConfig::Method::Gptq, .schemes = {}, .file = where};
  const auto format = json_get_or<std::string>(
      json, "checkpoint_format", json_get_or<std::string>(json, "format", "gptq", where), where);
  require(format == "gptq" || format == "gptq_v2",
          "{}: field \"checkpoint_format\": the GPTQ layout \"{}\" is not read; gptq and gptq_v2 are", where,
          format);
  require(!json_get_or<bool>(json, "is_marlin_format", false, where),
          "{}: field \"is_marlin_format\": weights in Marlin's GPU layout are not read; save them as gptq",
          where);
  const auto dynamic = json.find("dynamic");
  if (dynamic != json.end() && dynamic->is_object())
    for (const auto& [pattern, value] : dynamic->items())
      require(pattern.starts_with("-:"),
              "{}: field \"dynamic\": other settings for some modules (\"{}\") are not read", where, pattern);
  config.stored_zero_minus_one = format == "gptq";
  PackedScheme scheme;
  scheme.bits = bits_of(json, "bits", where, "GPTQ");
  scheme.group = group_of(json, "group_size", where);
  scheme.symmetric = json_get_or<bool>(json, "sym", true, where);
  config.schemes.push_back(std::move(scheme));
  return config;
}

PackedConfig awq(const Json& json, const std::string& where) {
  PackedConfig config{.method = PackedConfig::Method::Awq, .schemes = {}, .file = where};
  auto version = json_get_or<std::string>(json, "version", "gemm", where);
  for (char& c : version) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  require(version == "gemm", "{}: field \"version\": AWQ's layout \"{}\" is not read; gemm is", where,
          version);
  PackedScheme scheme;
  const bool old_names = !json.contains("bits");
  scheme.bits = json_get<int>(json, old_names ? "w_bit" : "bits", where);
  require(scheme.bits == 4, "{}: AWQ weights of {} bits are not read; 4 are", where, scheme.bits);
  scheme.group = group_of(json, old_names ? "q_group_size" : "group_size", where);
  scheme.symmetric = !json_get_or<bool>(json, "zero_point", true, where);
  config.schemes.push_back(std::move(scheme));
  return config;
}

// Inputs are quantised as they come, so only the width matters here: one scale a token.
ActivationPolicy activation_of(const Json& group, const std::string& where) {
  const auto found = group.find("input_activations");
  if (found == group.end() || found->is_null()) return {};
  const auto type = json_get_or<std::string>(*found, "type", "int", where);
  const int bits = json_get<int>(*found, "num_bits", where);
  const auto strategy = json_get_or<std::string>(*found, "strategy", "token", where);
  require(
      type == "int" && bits == 8 && strategy == "token" && json_get_or<bool>(*found, "dynamic", true, where),
      "{}: input activations of {} {} bits, strategy {}, are not computed; dynamic int 8 by token are; "
      "save the weights without them",
      where, type, bits, strategy);
  return {.bits = 8, .group = 0, .symmetric = json_get_or<bool>(*found, "symmetric", true, where)};
}

PackedScheme compressed_group(const Json& group, const std::string& format, const std::string& where) {
  require(group.is_object() && group.contains("weights") && group["weights"].is_object(),
          "{}: a config group has no \"weights\"", where);
  const Json& weights = group["weights"];
  const auto type = json_get_or<std::string>(weights, "type", "int", where);
  require(type == "int", "{}: weights of type \"{}\" are not read; int are", where, type);
  const auto own_format = json_get_or<std::string>(group, "format", format, where);
  require(
      own_format == "pack-quantized" || own_format == "int-quantized" || own_format == "naive-quantized",
      "{}: field \"format\": compressed-tensors' \"{}\" is not read; pack-quantized and int-quantized are",
      where, own_format);
  PackedScheme scheme;
  scheme.bits = bits_of(weights, "num_bits", where, "compressed-tensors");
  scheme.symmetric = json_get_or<bool>(weights, "symmetric", true, where);
  const auto strategy = json_get_or<std::string>(weights, "strategy", "", where);
  const int64_t size = group_of(weights, "group_size", where);
  require(strategy.empty() || strategy == "group" || strategy == "channel",
          "{}: field \"strategy\": weight scales by {} are not read; by group and by channel are", where,
          strategy);
  require(strategy != "group" || size > 0, "{}: strategy \"group\" without a group_size", where);
  require(strategy != "channel" || size == 0, "{}: strategy \"channel\" with a group_size of {}", where,
          size);
  scheme.group = size;
  scheme.activation = activation_of(group, where);
  scheme.targets = json_get_or<std::vector<std::string>>(group, "targets", {"Linear"}, where);
  return scheme;
}

PackedConfig compressed_tensors(const Json& json, const std::string& where) {
  PackedConfig config{.method = PackedConfig::Method::CompressedTensors, .schemes = {}, .file = where};
  const auto refuse = [&](std::string_view key, std::string_view what) {
    const auto found = json.find(std::string(key));
    require(found == json.end() || found->is_null() || found->empty(), "{}: field \"{}\": {}", where, key,
            what);
  };
  refuse("transform_config", "online transforms of compressed-tensors are not computed");
  refuse("kv_cache_scheme", "a KV cache with stored scales is not computed");
  const auto groups = json.find("config_groups");
  require(groups != json.end() && groups->is_object() && !groups->empty(),
          "{}: field \"config_groups\" is missing", where);
  const auto format = json_get_or<std::string>(json, "format", "pack-quantized", where);
  for (const auto& [name, group] : groups->items())
    config.schemes.push_back(
        compressed_group(group, format, fmt::format("{}: config group {}", where, name)));
  return config;
}

PackedConfig parse(const Json& json, const std::string& where, const std::string& fallback_method) {
  require(json.is_object(), "{}: the quantisation config is no object", where);
  const auto method = json_get_or<std::string>(json, "quant_method", fallback_method, where);
  if (method == "gptq") return gptq(json, where);
  if (method == "awq") return awq(json, where);
  if (method == "compressed-tensors") return compressed_tensors(json, where);
  fail(
      "{}: the weights are already quantised ({}), and not in a layout that is read here (gptq, awq, "
      "compressed-tensors); give the 16-bit model",
      where, method.empty() ? json_get_or<std::string>(json, "quant_algo", "unnamed", where) : method);
}

bool names(const PackedScheme& scheme, std::string_view linear, bool by_class) {
  for (const std::string& target : scheme.targets) {
    if (target == linear) return true;
    if (by_class && target == "Linear") return true;
    if (!target.starts_with("re:")) continue;
    require(target.size() <= kLongestPattern, "a target of {} characters: \"{}...\"", target.size(),
            target.substr(0, 40));
    try {
      if (std::regex_search(linear.begin(), linear.end(), std::regex("^(?:" + target.substr(3) + ")")))
        return true;
    } catch (const std::regex_error&) {
      fail("the target \"{}\" is no regular expression that is understood here", target);
    }
  }
  return false;
}

}  // namespace

const PackedScheme& PackedConfig::scheme_of(std::string_view linear) const {
  if (method != Method::CompressedTensors) return schemes.front();
  try {
    for (const bool by_class : {false, true})
      for (const PackedScheme& scheme : schemes)
        if (names(scheme, linear, by_class)) return scheme;
  } catch (const Error& error) {
    fail("{}: {}", file, error.what());
  }
  fail("{}: {} holds quantised weights, but no config group names it", file, linear);
}

std::optional<PackedConfig> read_packed_config(const fs::path& directory, const Json& config) {
  const std::string where = (directory / "config.json").string() + ": quantization_config";
  const fs::path beside = directory / "quantize_config.json";
  const auto inner = config.is_object() ? config.find("quantization_config") : config.end();
  const bool in_config = inner != config.end() && !inner->is_null();
  if (!in_config && !fs::exists(beside)) return std::nullopt;
  if (!in_config) return parse(read_json(beside), beside.string(), "gptq");
  PackedConfig packed = parse(*inner, where, "");
  if (packed.method != PackedConfig::Method::CompressedTensors && fs::exists(beside)) {
    const PackedScheme& own = packed.schemes.front();
    const PackedScheme other =
        parse(read_json(beside), beside.string(), packed.method == PackedConfig::Method::Awq ? "awq" : "gptq")
            .schemes.front();
    require(own.bits == other.bits && own.group == other.group,
            "{} says {} bits in groups of {}, {} says {} in groups of {}; remove the one that is wrong",
            where, own.bits, own.group, beside.string(), other.bits, other.group);
  }
  return packed;
}

}  // namespace quatrain
