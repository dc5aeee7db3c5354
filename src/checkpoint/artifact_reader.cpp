#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "checkpoint/artifact.h"
#include "checkpoint/artifact_planes.h"

namespace quatrain {
namespace {

// "model.norm.weight_hi" -> {"model.norm", "weight_hi"}
std::pair<std::string, std::string> split_name(const std::string& tensor) {
  const size_t dot = tensor.rfind('.');
  if (dot == std::string::npos) return {"", tensor};
  return {tensor.substr(0, dot), tensor.substr(dot + 1)};
}

bool is_plane(std::string_view suffix) {
  return std::find(std::begin(kPlaneSuffixes), std::end(kPlaneSuffixes), suffix) != std::end(kPlaneSuffixes);
}

// Linears that must have planes: those with a policy or a plane, and the embedding and head where quantised.
std::set<std::string> quantized_linears(const QuantizationConfig& config, const TensorSource& tensors) {
  std::set<std::string> linears;
  for (const auto& [name, policy] : config.linears) linears.insert(name);
  if (config.lm_head_tied) linears.erase("lm_head");  // its policy holds for the embedding's planes
  if (config.embedding_bits < 16) linears.insert("model.embed_tokens");
  if (config.lm_head_bits < 16 && !config.lm_head_tied) linears.insert("lm_head");
  for (const TensorInfo& tensor : tensors.tensors()) {
    const auto [name, suffix] = split_name(tensor.name);
    if (is_plane(suffix)) linears.insert(name);
  }
  for (const std::string& name : config.unquantized) linears.erase(name);
  return linears;
}

// Every tensor that must be there and is not, and every one that is there and has no place; one error.
void check_tensors(const QuantizationConfig& config, const TensorSource& tensors) {
  const auto has = [&](const std::string& name) { return tensors.find(name) != nullptr; };
  std::set<std::string> expected;
  std::vector<std::string> missing, unexpected;
  const auto expect = [&](const std::string& name) {
    if (!expected.insert(name).second) return;
    if (!has(name)) missing.push_back(name);
  };

  for (const std::string& linear : quantized_linears(config, tensors)) {
    expect(linear + ".weight_hi");
    expect(linear + ".weight_scale");
    if (has(linear + ".weight_lo") || has(linear + ".weight_lo_index")) {
      expect(linear + ".weight_lo");
      expect(linear + ".weight_lo_index");
    }
    if (has(linear + ".bias")) expect(linear + ".bias");
  }
  for (const std::string& name : config.transform_tensors()) expect(name);
  for (const std::string& name : config.unquantized) expect(has(name) ? name : name + ".weight");

  for (const TensorInfo& tensor : tensors.tensors())
    if (!expected.contains(tensor.name)) unexpected.push_back(tensor.name);
  std::string text;
  if (!missing.empty()) text += fmt::format("\n  missing: {}", fmt::join(missing, ", "));
  if (!unexpected.empty()) text += fmt::format("\n  unexpected: {}", fmt::join(unexpected, ", "));
  require(text.empty(), "{}: the tensors do not fit quantization_config; quantise the model again:{}",
          tensors.path().string(), text);
}

// Whole pages of the map that are not needed for now: the process holds one tensor at a time.
void let_go(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)),
             at = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t begin = (at + page - 1) / page * page, end = (at + bytes.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace

ArtifactReader::ArtifactReader(const fs::path& directory) : directory_(directory) {
  const fs::path config_path = directory / "config.json";
  require(fs::is_directory(directory) && fs::exists(config_path),
          "{}: is not an artifact: no directory with a config.json", directory.string());
  config_ = read_json(config_path);
  require(config_.is_object() && config_.contains("quantization_config"),
          "{}: has no quantization_config: the model is not quantised", config_path.string());
  quantization_ = QuantizationConfig::from_json(config_["quantization_config"], config_path.string());
  tensors_ = open_safetensors(directory);
  check_tensors(quantization_, *tensors_);
}

void ArtifactReader::verify() const {
  for (const TensorInfo& tensor : tensors_->tensors()) let_go(tensors_->raw(tensor));
}

bool ArtifactReader::has_planes(std::string_view linear) const {
  return tensors_->find(fmt::format("{}.weight_hi", linear)) != nullptr;
}

NibblePlanes ArtifactReader::planes(std::string_view linear) const {
  return read_planes(*tensors_, linear, quantization_.linear(linear));
}

bool is_artifact(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error) || !fs::exists(path / "config.json", error)) return false;
  try {
    const Json config = read_json(path / "config.json");
    return config.is_object() && config.contains("quantization_config") &&
           config["quantization_config"].is_object() &&
           config["quantization_config"].value("quant_method", Json()) == "quatrain";
  } catch (const Error&) {
    return false;  // whoever opens the model reports the broken config.json
  }
}

}  // namespace quatrain
