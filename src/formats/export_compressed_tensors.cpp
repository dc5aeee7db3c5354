// compressed-tensors: NAME.weight_packed int32 along the inputs with NAME.weight_shape, or NAME.weight int8;
// NAME.weight_scale [N, G].
#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/element_type.h"
#include "formats/export.h"
#include "model/convert.h"

namespace quatrain {
namespace {

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span<const T>(values));
}

void write_matrix(SafetensorsWriter& writer, const std::string& name, const StoredCodes& codes, bool packed) {
  const int64_t n = codes.rows, k = codes.columns;
  if (packed) {
    const int64_t per_word = 32 / codes.bits, row_words = (k + per_word - 1) / per_word;
    const int middle = 1 << (codes.bits - 1);
    std::vector<uint32_t> words(static_cast<size_t>(n * row_words), 0);
    for (int64_t row = 0; row < n; ++row)
      for (int64_t column = 0; column < k; ++column)
        words[static_cast<size_t>(row * row_words + column / per_word)] |=
            static_cast<uint32_t>(codes.codes[static_cast<size_t>(row * k + column)] + middle)
            << (codes.bits * (column % per_word));
    writer.add(name + ".weight_packed", "I32", {n, row_words}, bytes_of(words));
    writer.add(name + ".weight_shape", "I64", {2}, bytes_of(std::vector<int64_t>{n, k}));
  } else {
    writer.add(name + ".weight", "I8", {n, k}, bytes_of(codes.codes));
  }
  // Scales of groups are FP16 numbers already; those of rows are FP32.
  const std::string_view type = codes.group == 0 ? "F32" : "F16";
  writer.add(name + ".weight_scale", type, {n, codes.groups()},
             encode_values(*find_element_type(type), codes.scale, name + ".weight_scale"));
}

bool by_token(const WeightScheme& scheme) {
  return scheme.activation.bits == 8 && scheme.activation.group == 0;
}

Json scheme_json(const WeightScheme& scheme) {
  const auto common = [](int bits, bool symmetric) {
    return Json{{"num_bits", bits},
                {"type", "int"},
                {"symmetric", symmetric},
                {"group_size", nullptr},
                {"block_structure", nullptr},
                {"actorder", nullptr},
                {"observer_kwargs", Json::object()}};
  };
  Json weights = common(scheme.bits, true);
  weights["strategy"] = scheme.group == 0 ? "channel" : "group";
  if (scheme.group > 0) weights["group_size"] = scheme.group;
  weights["dynamic"] = false;
  weights["observer"] = "minmax";
  Json json = {
      {"weights", std::move(weights)}, {"input_activations", nullptr}, {"output_activations", nullptr}};
  json["format"] = by_token(scheme) ? "int-quantized" : "pack-quantized";
  if (by_token(scheme)) {
    Json inputs = common(8, scheme.activation.symmetric);
    inputs["strategy"] = "token";
    inputs["dynamic"] = true;
    inputs["observer"] = nullptr;
    json["input_activations"] = std::move(inputs);
  }
  return json;
}

std::string module_of(const StoredTensor& tensor) {
  return tensor.name.substr(0, tensor.name.rfind('.'));
}

}  // namespace

void export_compressed_tensors(const Checkpoint& model, const fs::path& output,
                               const FormatOptions& options) {
  const std::vector<StoredTensor> layout = hub_layout(model.config());
  std::vector<WeightScheme> schemes = plan_schemes(model, layout);
  size_t dropped = 0;
  for (size_t i = 0; i < schemes.size(); ++i) {
    WeightScheme& scheme = schemes[i];
    require(scheme.bits == 16 || scheme.group == 0 || layout[i].shape[1] % scheme.group == 0,
            "{}: {} has {} inputs, which groups of {} do not divide", model.path().string(), layout[i].name,
            layout[i].shape[1], scheme.group);
    if (by_token(scheme) || scheme.activation.bits == 16) continue;
    scheme.activation = {};
    ++dropped;
  }
  if (dropped > 0)
    log_warn("{} matrices have activations that are not 8-bit by token; they are exported as weights alone",
             dropped);

  std::vector<WeightScheme> kinds;
  for (const WeightScheme& scheme : schemes)
    if (scheme.bits < 16 && std::ranges::find(kinds, scheme) == kinds.end()) kinds.push_back(scheme);
  Json groups = Json::object(), ignore = Json::array();
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    Json json = scheme_json(kinds[kind]);
    json["targets"] = Json::array();
    if (kinds.size() == 1) json["targets"].push_back("Linear");
    for (size_t i = 0; i < layout.size() && kinds.size() > 1; ++i)
      if (schemes[i] == kinds[kind]) json["targets"].push_back(module_of(layout[i]));
    groups[fmt::format("group_{}", kind)] = std::move(json);
  }
  // Modules that the class name "Linear" would match: 16-bit layers, routers, the head.
  for (size_t i = 0; i < layout.size(); ++i)
    if (schemes[i].bits == 16 && layout[i].shape.size() == 2 && layout[i].name != "model.embed_tokens.weight")
      ignore.push_back(module_of(layout[i]));
  if (model.config().tied_embeddings) ignore.push_back("lm_head");
  const bool mixed =
      std::ranges::any_of(kinds, [&](const auto& kind) { return by_token(kind) != by_token(kinds[0]); });
  const Json config = {{"quant_method", "compressed-tensors"},
                       {"format", mixed                ? "mixed-precision"
                                  : by_token(kinds[0]) ? "int-quantized"
                                                       : "pack-quantized"},
                       {"quantization_status", "compressed"},
                       {"global_compression_ratio", nullptr},
                       {"kv_cache_scheme", nullptr},
                       {"config_groups", groups},
                       {"ignore", ignore}};
  std::map<std::string, bool> packed;
  for (size_t i = 0; i < layout.size(); ++i) packed[module_of(layout[i])] = !by_token(schemes[i]);
  write_packed_hub(model, output, options.dtype, layout, schemes, config,
                   [&](SafetensorsWriter& writer, const std::string& name, StoredCodes codes) {
                     write_matrix(writer, name, codes, packed.at(name));
                   });
}

}  // namespace quatrain
