#include "quant/layer_record.h"

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

Tensors read_tensors(const std::string& prefix, const Json& shapes, const JournalEntry& entry) {
  Tensors tensors;
  for (const auto& [name, shape] : shapes.items()) {
    const torch::Tensor values = torch::empty(shape.get<std::vector<int64_t>>(), torch::kFloat);
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
  QuantizedLayer layer;
  for (const Json& linear : facts.at("linears")) {
    const auto name = linear.at("name").get<std::string>();
    NibblePlanes planes;
    planes.rows = linear.at("rows");
    planes.columns = linear.at("columns");
    planes.weight_group = linear.at("weight_group");
    planes.residual_block = linear.at("residual_block");
    planes.hi = entry.values<uint8_t>(name + ".hi");
    planes.scale = entry.values<float>(name + ".scale");
    planes.residual_index = entry.values<int32_t>(name + ".residual_index");
    planes.lo = entry.values<uint8_t>(name + ".lo");
    planes.bias = entry.values<float>(name + ".bias");
    layer.linears.push_back({name, std::move(planes), linear.at("report")});
  }
  layer.transforms = read_tensors("transform ", facts.at("transforms"), entry);
  layer.rescaled = read_tensors("rescaled ", facts.at("rescaled"), entry);
  layer.smoothing = facts.at("smoothing");
  layer.coverage = facts.value("coverage", Json());
  layer.stream_error = facts.at("stream_error");
  return layer;
}

}  // namespace quatrain
