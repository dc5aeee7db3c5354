#include "quant/refine/rewrite.h"

#include "base/error.h"
#include "checkpoint/artifact.h"

namespace quatrain {
namespace {

constexpr std::string_view kPlane = ".weight_hi";

// The linear that a tensor is a part of, "" for tensors that stand alone.
std::string linear_of(const ArtifactReader& reader, const std::string& tensor) {
  const size_t dot = tensor.rfind('.');
  const std::string name = tensor.substr(0, dot);
  return dot != std::string::npos && reader.has_planes(name) ? name : "";
}

bool written_by_artifact(const std::string& file) {
  return file == "config.json" || file == "recipe.toml" || file == "quantization_report.json" ||
         file == "model.safetensors.index.json" || file.ends_with(".safetensors");
}

}  // namespace

void rewrite(const fs::path& source, const RefinedValues& refined, std::string_view recipe_toml,
             const Json& report, const fs::path& output) {
  const ArtifactReader reader(source);
  ArtifactWriter writer(output);
  for (const TensorInfo& tensor : reader.tensors().tensors()) {
    const std::string linear = linear_of(reader, tensor.name);
    if (linear.empty()) {
      std::vector<float> values(static_cast<size_t>(tensor.elements()));
      reader.tensors().read_rows(tensor, 0, values);
      if (const auto found = refined.norms.find(tensor.name); found != refined.norms.end())
        values = found->second;
      writer.add_tensor(tensor.name, tensor.shape, values, tensor.type);
    } else if (tensor.name.ends_with(kPlane)) {
      NibblePlanes planes = reader.planes(linear);
      if (const auto found = refined.scales.find(linear); found != refined.scales.end())
        planes.scale = found->second;
      writer.add_planes(linear, planes);
    }
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(source)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && !written_by_artifact(name))
      fs::copy_file(entry.path(), writer.staging() / name, fs::copy_options::overwrite_existing);
  }
  Json config = reader.config();
  config.erase("quantization_config");
  writer.finish(config, reader.quantization(), recipe_toml, report);
}

}  // namespace quatrain
