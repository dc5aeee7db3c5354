#include "checkpoint/packed/packed_source.h"

#include "base/error.h"
#include "base/log.h"

namespace quatrain {
namespace {

// The tensor with the codes, and all tensors that belong to them, after "NAME.".
struct Layout {
  std::vector<std::string_view> codes, parts;
  std::unique_ptr<PackedWeight> (*open)(const TensorSource&, const std::string&, const PackedConfig&);
};

Layout layout_of(PackedConfig::Method method) {
  switch (method) {
    case PackedConfig::Method::Gptq:
      return {{"qweight"}, {"qzeros", "scales", "g_idx"}, gptq_weight};
    case PackedConfig::Method::Awq:
      return {{"qweight"}, {"qzeros", "scales"}, awq_weight};
    case PackedConfig::Method::CompressedTensors:
      break;
  }
  return {{"weight_packed", "weight"},
          {"weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"},
          compressed_weight};
}

}  // namespace

PackedSource::PackedSource(std::unique_ptr<TensorSource> files, const PackedConfig& config)
    : files_(std::move(files)) {
  const Layout layout = layout_of(config.method);
  for (const TensorInfo& tensor : files_->tensors()) {
    const size_t dot = tensor.name.rfind('.');
    if (dot == std::string::npos) continue;
    const std::string linear = tensor.name.substr(0, dot), suffix = tensor.name.substr(dot + 1);
    if (std::ranges::find(layout.codes, suffix) == layout.codes.end()) continue;
    if (suffix == "weight" && tensor.type != "I8") continue;  // int-quantized beside unquantised ones
    const std::string name = linear + ".weight";
    require(codes_.emplace(name, tensor.name).second, "{}: {} has packed and unpacked codes", path().string(),
            linear);
    weights_[name] = layout.open(*files_, linear, config);
    for (const std::string_view part : layout.parts)
      if (const TensorInfo* found = files_->find(fmt::format("{}.{}", linear, part)))
        parts_.insert(found->name);
  }
  std::map<std::string, size_t> notes;
  for (const auto& [name, weight] : weights_)
    if (!weight->note.empty()) ++notes[weight->note];
  for (const auto& [note, count] : notes) log_warn("{}: {} matrices: {}", path().string(), count, note);
  require(!weights_.empty(), "{}: no tensor is packed, though {} says that the weights are quantised",
          path().string(), config.file);
  std::map<std::string, std::string, std::less<>> weight_of;
  for (const auto& [name, codes] : codes_) weight_of[codes] = name;
  for (const TensorInfo& tensor : files_->tensors()) {
    const auto found = weight_of.find(tensor.name);
    if (found == weight_of.end()) {
      tensors_.push_back(tensor);
    } else {
      const PackedWeight& weight = *weights_.at(found->second);
      tensors_.push_back({found->second, weight.type, {weight.rows, weight.columns}});
    }
  }
  for (size_t i = 0; i < tensors_.size(); ++i)
    require(index_.emplace(tensors_[i].name, i).second, "{}: tensor {} is there packed and unpacked",
            path().string(), tensors_[i].name);
}

const TensorInfo* PackedSource::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const PackedWeight* PackedSource::packed(const TensorInfo& tensor) const {
  const auto found = weights_.find(tensor.name);
  return found == weights_.end() ? nullptr : found->second.get();
}

void PackedSource::read_rows(const TensorInfo& tensor, int64_t begin, std::span<float> out) const {
  const PackedWeight* weight = packed(tensor);
  if (weight == nullptr) return files_->read_rows(*files_->find(tensor.name), begin, out);
  const auto count = std::ssize(out);
  require(count % weight->columns == 0 && begin >= 0 && begin <= weight->rows - count / weight->columns,
          "{}: tensor {}: rows from {} ({} values) asked of {} rows of {}", path().string(), tensor.name,
          begin, count, weight->rows, weight->columns);
  weight->read_rows(begin, out);
}

uint64_t PackedSource::bytes(const TensorInfo& tensor) const {
  uint64_t bytes = raw(tensor).size();
  if (packed(tensor) == nullptr) return bytes;
  const std::string prefix = tensor.name.substr(0, tensor.name.rfind('.') + 1);
  for (auto part = parts_.lower_bound(prefix); part != parts_.end() && part->starts_with(prefix); ++part)
    bytes += files_->raw(*files_->find(*part)).size();
  return bytes;
}

std::span<const std::byte> PackedSource::raw(const TensorInfo& tensor) const {
  const auto found = codes_.find(tensor.name);
  return files_->raw(*files_->find(found == codes_.end() ? tensor.name : found->second));
}

}  // namespace quatrain
