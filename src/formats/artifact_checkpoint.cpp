#include "formats/artifact_checkpoint.h"

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "checkpoint/artifact.h"
#include "formats/fold_transform.h"

namespace quatrain {
namespace {

constexpr size_t kListed = 5;  // layers of one kind in an error; the rest are counted

std::string listed(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kListed);
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<long>(shown), ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

std::string linear_of(const std::string& tensor) {
  constexpr std::string_view kWeight = ".weight";
  return tensor.ends_with(kWeight) ? tensor.substr(0, tensor.size() - kWeight.size()) : "";
}

class ArtifactCheckpoint : public Checkpoint {
 public:
  ArtifactCheckpoint(const fs::path& directory, bool fold) : reader_(directory) {
    path_ = directory;
    config_ = ModelConfig::from_json(reader_.config(), (directory / "config.json").string());
    refuse(fold);
  }

  bool has(const std::string& name) const override {
    return reader_.tensors().find(name) != nullptr || reader_.has_planes(linear_of(name));
  }

  std::vector<int64_t> shape(const std::string& name) const override {
    if (const TensorInfo* tensor = reader_.tensors().find(name)) return tensor->shape;
    const TensorInfo* hi = reader_.tensors().find(linear_of(name) + ".weight_hi");
    require(hi != nullptr && hi->shape.size() == 2, "{}: the artifact has no tensor {}", path_.string(),
            name);
    return {hi->shape[0], 2 * hi->shape[1]};
  }

  std::vector<float> read(const std::string& name) const override {
    return read_rows(name, 0, shape(name).front());
  }

  std::vector<float> read_rows(const std::string& name, int64_t begin, int64_t end) const override {
    const std::vector<int64_t> sizes = shape(name);
    const int64_t width = sizes.size() < 2 ? 1 : sizes.back();
    require(0 <= begin && begin <= end && end <= sizes.front(),
            "{}: tensor {} has {} rows; [{}, {}) was asked for", path_.string(), name, sizes.front(), begin,
            end);
    std::vector<float> values(static_cast<size_t>((end - begin) * width));
    const std::string linear = linear_of(name);
    const TensorInfo* tensor = reader_.tensors().find(name);
    if (tensor == nullptr) {
      const std::lock_guard lock(mutex_);
      const NibblePlanes& planes = cached(linear);
      for (int64_t row = begin; row < end; ++row)
        planes.dequantize_row(row, values.data() + (row - begin) * width);
    } else if (sizes.size() < 2) {
      std::vector<float> whole(static_cast<size_t>(sizes.front()));
      reader_.tensors().read_rows(*tensor, 0, whole);
      std::copy(whole.begin() + begin, whole.begin() + end, values.begin());
    } else {
      reader_.tensors().read_rows(*tensor, begin, values);
    }
    if (const Transform* transform = transform_of(linear))
      fold_transform(*transform, stored(*transform), values, width,
                     fmt::format("{}: {}", path_.string(), linear));
    return values;
  }

  std::optional<StoredCodes> read_codes(const std::string& name, int64_t begin, int64_t end) const override {
    const std::string linear = linear_of(name);
    if (!reader_.has_planes(linear) || transform_of(linear) != nullptr) return std::nullopt;
    const std::lock_guard lock(mutex_);
    const NibblePlanes& planes = cached(linear);
    StoredCodes codes = codes_of_planes(planes);
    if (begin == 0 && end == codes.rows) return codes;
    require(0 <= begin && begin <= end && end <= codes.rows, "{}: {} has {} rows; [{}, {}) was asked for",
            path_.string(), name, codes.rows, begin, end);
    codes.codes.assign(codes.codes.begin() + begin * codes.columns,
                       codes.codes.begin() + end * codes.columns);
    codes.scale.assign(codes.scale.begin() + begin * codes.groups(),
                       codes.scale.begin() + end * codes.groups());
    codes.rows = end - begin;
    return codes;
  }

  ActivationPolicy activation(const std::string& linear) const override {
    return reader_.has_planes(linear) && transform_of(linear) == nullptr
               ? reader_.quantization().linear(linear).activation
               : ActivationPolicy{};
  }

  std::string stored_type(const std::string& name) const override {
    const TensorInfo* tensor = reader_.tensors().find(name);
    return tensor == nullptr ? "nibble planes" : tensor->type;
  }

  uint64_t stored_bytes(const std::string& name) const override {
    if (const TensorInfo* tensor = reader_.tensors().find(name)) return reader_.tensors().raw(*tensor).size();
    uint64_t bytes = 0;
    for (const std::string_view part : {"weight_hi", "weight_scale", "weight_lo", "weight_lo_index"})
      if (const TensorInfo* tensor = reader_.tensors().find(fmt::format("{}.{}", linear_of(name), part)))
        bytes += reader_.tensors().raw(*tensor).size();
    return bytes;
  }

  std::string fingerprint() const override {
    Sha256 hash;
    const std::string config = reader_.config().dump();
    hash.update(config.data(), config.size());
    for (const TensorInfo& tensor : reader_.tensors().tensors()) {
      hash.update(tensor.name.data(), tensor.name.size() + 1);
      const auto bytes = reader_.tensors().raw(tensor);
      hash.update(bytes.data(), bytes.size());
    }
    return hash.hex();
  }

 private:
  // nullptr where the linear has none. The embedding's look-up has none either: it is the head's input.
  const Transform* transform_of(const std::string& linear) const {
    if (linear.empty() || !(reader_.has_planes(linear) || reader_.quantization().linears.contains(linear)))
      return nullptr;
    const Transform& transform = reader_.quantization().linear(linear).input_transform;
    return transform.kind == "none" || linear == "model.embed_tokens" ? nullptr : &transform;
  }

  std::vector<float> stored(const Transform& transform) const {
    if (transform.tensor.empty()) return {};
    const TensorInfo* tensor = reader_.tensors().find(transform.tensor);
    require(tensor != nullptr, "{}: tensor {} is missing", path_.string(), transform.tensor);
    std::vector<float> values(static_cast<size_t>(tensor->elements()));
    reader_.tensors().read_rows(*tensor, 0, values);
    return values;
  }

  // The planes that were asked for last: exporters go through a matrix in pieces.
  const NibblePlanes& cached(const std::string& linear) const {
    if (planes_name_ != linear) {
      planes_ = reader_.planes(linear);
      planes_name_ = linear;
    }
    return planes_;
  }

  // Everything that no other format says, in one error, or in the log when it is folded.
  void refuse(bool fold) {
    const QuantizationConfig& quantization = reader_.quantization();
    require(!quantization.lm_head_tied || quantization.linear("lm_head").input_transform.kind == "none",
            "{}: the head shares the embedding's planes and transforms its input, which cannot be folded; "
            "quantise with a head of its own",
            path_.string());
    std::vector<std::string> transformed, partial, keys;
    std::vector<LinearShape> linears{{"lm_head", config_.vocabulary, config_.hidden, false}};
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      for (LinearShape& linear : linears_of_layer(config_, layer)) linears.push_back(std::move(linear));
      const KvPolicy& kv = quantization.kv_of(static_cast<int>(layer));
      require(
          kv.value_transform.kind == "none",
          "{}: layer {} has an online transform of values ({}), which no other format expresses and which "
          "cannot be folded; quantise without it",
          path_.string(), layer, kv.value_transform.kind);
      if (kv.key_transform.kind != "none") keys.push_back(fmt::format("{}", layer));
    }
    for (const LinearShape& linear : linears) {
      if (transform_of(linear.name) != nullptr)
        transformed.push_back(linear.name);
      else if (const TensorInfo* index = reader_.tensors().find(linear.name + ".weight_lo_index")) {
        const LinearPolicy& policy = quantization.linear(linear.name);
        const int64_t blocks = ((linear.out + kResidualRows - 1) / kResidualRows) *
                               ((linear.in + policy.residual_block - 1) / policy.residual_block);
        if (index->elements() != blocks) partial.push_back(linear.name);
      }
    }
    if (fold) {
      if (!transformed.empty())
        log_warn("{} linears have an online input transform; it is folded and their weights are 16-bit: {}",
                 transformed.size(), listed(transformed));
      if (!partial.empty())
        log_warn("{} linears have a residual in some blocks; they become 8-bit: {}", partial.size(),
                 listed(partial));
      if (!keys.empty())
        log_warn("key transforms of {} layers are left out with the 4-bit cache", keys.size());
    } else {
      std::string text;
      if (!transformed.empty())
        text += fmt::format("\n  online transforms of the input: {}", listed(transformed));
      if (!partial.empty()) text += fmt::format("\n  residual planes in some blocks: {}", listed(partial));
      if (!keys.empty()) text += fmt::format("\n  transforms of keys: layers {}", listed(keys));
      require(
          text.empty(),
          "{}: other formats cannot express parts of this artifact; --fold turns these layers into 16-bit "
          "or 8-bit ones:{}",
          path_.string(), text);
    }
    if (quantization.kv.bits < 16 || !quantization.kv_layers.empty())
      log_warn("the {}-bit KV cache is not part of the export: readers keep keys and values in 16 bits",
               quantization.kv.bits);
  }

  ArtifactReader reader_;
  mutable std::mutex mutex_;
  mutable std::string planes_name_;
  mutable NibblePlanes planes_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_artifact(const fs::path& directory, bool fold) {
  return std::make_unique<ArtifactCheckpoint>(directory, fold);
}

}  // namespace quatrain
