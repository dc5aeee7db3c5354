#include "quant/layer_record.h"

#include <fmt/core.h>

#include "base/error.h"

namespace quatrain {
namespace {

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span<const T>(values));
}

using Tensors = std::map<std::string, torch::Tensor>;

// FP32 tensors by name; `kept` holds what the parts point at.
Json add_tensors(const std::string& prefix, const Tensors& tensors, Journal::Parts& parts,
                 std::vector<torch::Tensor>& kept) {
  Json shapes = Json::object();
  for (const auto& [name, tensor] : tensors) {
    kept.push_back(tensor.to(torch::kFloat).cpu().contiguous());
    const torch::Tensor& values = kept.back();
    shapes[name] = values.sizes().vec();
    parts.emplace_back(prefix + name,
                       std::span(static_cast<const std::byte*>(values.data_ptr()), values.nbytes()));
  }
  return shapes;
}

// `field` of the facts has their shapes.
Tensors read_tensors(const std::string& prefix, const char* field, const JournalEntry& entry) {
  const std::string where = entry.where();
  Tensors tensors;
  for (const auto& [name, dimensions] : json_get<Json::object_t>(entry.facts(), field, where)) {
    const auto shape = json_whole_numbers<int64_t>(dimensions, fmt::format("{}: {}: {}", where, field, name));
    entry.require_shape(prefix + name, shape, sizeof(float));
    const torch::Tensor values = torch::empty(shape, torch::kFloat);
    entry.copy(prefix + name, {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
    tensors[name] = values;
  }
  return tensors;
}

}  // namespace

void write_layer(Journal& journal, const std::string& name, const QuantizedLayer& layer) {
  Json linears = Json::array();
  Journal::Parts parts;
  for (const QuantizedLinear& linear : layer.linears) {
    const NibblePlanes& planes = linear.planes;
    linears.push_back({{"name", linear.name},
                       {"rows", planes.rows},
                       {"columns", planes.columns},
                       {"weight_group", planes.weight_group},
                       {"residual_block", planes.residual_block},
                       {"report", linear.report}});
    parts.emplace_back(linear.name + ".hi", bytes_of(planes.hi));
    parts.emplace_back(linear.name + ".scale", bytes_of(planes.scale));
    parts.emplace_back(linear.name + ".residual_index", bytes_of(planes.residual_index));
    parts.emplace_back(linear.name + ".lo", bytes_of(planes.lo));
    parts.emplace_back(linear.name + ".bias", bytes_of(planes.bias));
  }
  std::vector<torch::Tensor> kept;
  const Json transforms = add_tensors("transform ", layer.transforms, parts, kept);
  const Json rescaled = add_tensors("rescaled ", layer.rescaled, parts, kept);
  journal.write(name,
                {{"linears", linears},
                 {"transforms", transforms},
                 {"rescaled", rescaled},
                 {"smoothing", layer.smoothing},
                 {"coverage", layer.coverage},
                 {"stream_error", layer.stream_error}},
                parts);
}

QuantizedLayer read_layer(const JournalEntry& entry) {
  const Json& facts = entry.facts();
  const std::string where = entry.where();
  QuantizedLayer layer;
  for (const Json& linear : json_get<std::vector<Json>>(facts, "linears", where)) {
    const std::string here = fmt::format("{}: linear {}", where, layer.linears.size());
    const auto name = json_get<std::string>(linear, "name", here);
    NibblePlanes planes;  // whether their sizes match, ArtifactWriter checks
    planes.rows = json_get<int64_t>(linear, "rows", here);
    planes.columns = json_get<int64_t>(linear, "columns", here);
    planes.weight_group = json_get<int64_t>(linear, "weight_group", here);
    planes.residual_block = json_get<int64_t>(linear, "residual_block", here);
    planes.hi = entry.values<uint8_t>(name + ".hi");
    planes.scale = entry.values<float>(name + ".scale");
    planes.residual_index = entry.values<int32_t>(name + ".residual_index");
    planes.lo = entry.values<uint8_t>(name + ".lo");
    planes.bias = entry.values<float>(name + ".bias");
    layer.linears.push_back({name, std::move(planes), json_get<Json>(linear, "report", here)});
  }
  layer.transforms = read_tensors("transform ", "transforms", entry);
  layer.rescaled = read_tensors("rescaled ", "rescaled", entry);
  layer.smoothing = json_get<Json>(facts, "smoothing", where);
  layer.coverage = json_get_or<Json>(facts, "coverage", Json(), where);
  layer.stream_error = json_get<double>(facts, "stream_error", where);
  return layer;
}

}  // namespace quatrain
