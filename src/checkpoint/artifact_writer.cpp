#include <algorithm>
#include <set>

#include "base/error.h"
#include "checkpoint/artifact.h"
#include "checkpoint/artifact_planes.h"
#include "checkpoint/element_type.h"
#include "checkpoint/safetensors_writer.h"

namespace quatrain {
namespace {

// A killed run leaves its shards under the working name; a directory that is resumed must not keep them.
const fs::path& without_stale_shards(const fs::path& staging) {
  for (const fs::directory_entry& entry : fs::directory_iterator(staging)) {
    const std::string name = entry.path().filename().string();
    const bool shard = name.starts_with("shard-") || name.starts_with("model-");
    if (name.ends_with(".tmp") || (shard && name.ends_with(".safetensors"))) fs::remove(entry.path());
  }
  return staging;
}

constexpr std::string_view kWeight = ".weight";

bool is_weight(std::string_view name) {
  return name.ends_with(kWeight);
}

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span<const T>(values));
}

}  // namespace

struct ArtifactWriter::Impl {
  explicit Impl(const fs::path& path, size_t shard_bytes)
      : directory(path), shards(without_stale_shards(directory.path()), shard_bytes) {}

  AtomicDirectory directory;
  SafetensorsWriter shards;
  std::map<std::string, std::pair<int64_t, int64_t>> planes;  // linear: weight group, residual block
  std::map<std::string, size_t> plain;                        // tensors that are no planes: their bytes
  uint64_t matrix_bytes = 0, matrix_weights = 0;
};

ArtifactWriter::ArtifactWriter(const fs::path& directory, size_t shard_bytes)
    : impl_(std::make_unique<Impl>(directory, shard_bytes)) {}

ArtifactWriter::~ArtifactWriter() = default;

const fs::path& ArtifactWriter::staging() const {
  return impl_->directory.path();
}

void ArtifactWriter::add_planes(const std::string& linear, const NibblePlanes& planes) {
  check_planes(planes, fmt::format("{}: {}", staging().string(), linear));
  SafetensorsWriter& shards = impl_->shards;
  const uint64_t before = shards.bytes();
  shards.add(linear + ".weight_hi", "U8", {planes.rows, planes.columns / 2}, bytes_of(planes.hi));
  const std::string_view scale_type = planes.weight_group == 0 ? "F32" : "F16";
  shards.add(linear + ".weight_scale", scale_type, {planes.rows, planes.groups()},
             encode_values(*find_element_type(scale_type), planes.scale, linear + ".weight_scale"));
  if (!planes.residual_index.empty()) {
    const auto blocks = static_cast<int64_t>(planes.residual_index.size());
    shards.add(linear + ".weight_lo", "U8", {blocks, kResidualRows, planes.residual_block / 2},
               bytes_of(planes.lo));
    shards.add(linear + ".weight_lo_index", "I32", {blocks}, bytes_of(planes.residual_index));
  }
  impl_->matrix_bytes += shards.bytes() - before;
  impl_->matrix_weights += static_cast<uint64_t>(planes.rows) * static_cast<uint64_t>(planes.columns);
  if (!planes.bias.empty()) shards.add(linear + ".bias", "F32", {planes.rows}, bytes_of(planes.bias));
  impl_->planes[linear] = {planes.weight_group, planes.residual_block};
}

void ArtifactWriter::add_tensor(const std::string& name, const std::vector<int64_t>& shape,
                                std::span<const float> values, std::string_view type) {
  const ElementType* element = find_element_type(type);
  require(type == "F32" || type == "F16" || type == "BF16",
          "{}: tensor {}: type {}; F32, F16 and BF16 are written", staging().string(), name, type);
  const std::vector<std::byte> bytes =
      encode_values(*element, values, fmt::format("{}: tensor {}", staging().string(), name));
  impl_->shards.add(name, type, shape, bytes);
  impl_->plain[name] = bytes.size();
  if (is_weight(name) && shape.size() == 2) {
    impl_->matrix_bytes += bytes.size();
    impl_->matrix_weights += values.size();
  }
}

void ArtifactWriter::finish(Json model_config, QuantizationConfig quantization, std::string_view recipe_toml,
                            const Json& report) {
  impl_->shards.finish();
  // What was written decides: group and block of every matrix, and the list of plain tensors.
  for (const auto& [linear, sizes] : impl_->planes) {
    LinearPolicy policy = quantization.linear(linear);
    if (std::pair(policy.weight_group, policy.residual_block) == sizes) continue;
    std::tie(policy.weight_group, policy.residual_block) = sizes;
    quantization.linears[linear] = policy;
  }
  quantization.unquantized.clear();
  const std::set<std::string> transforms = quantization.transform_tensors();
  for (const auto& [name, bytes] : impl_->plain)
    if (transforms.contains(name))
      impl_->matrix_bytes += bytes;  // a transform is part of what the quantised matrices need
    else
      quantization.unquantized.push_back(is_weight(name) ? name.substr(0, name.size() - kWeight.size())
                                                         : name);
  if (impl_->matrix_weights > 0)
    quantization.bits_per_weight =
        8.0 * static_cast<double>(impl_->matrix_bytes) / static_cast<double>(impl_->matrix_weights);

  model_config["quantization_config"] = quantization.to_json();
  write_file(staging() / "recipe.toml", recipe_toml);
  write_file(staging() / "quantization_report.json", report.dump(2) + "\n");
  write_file(staging() / "config.json", model_config.dump(2) + "\n");
  // A policy without its planes, or bytes that are not on the disk as they were written, are found here, not
  // by the first reader.
  ArtifactReader(staging()).verify();
  impl_->directory.commit();
}

}  // namespace quatrain
