// The artifact (docs/artifact.md): policies, and the directory that holds a quantised model.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/number_format.h"
#include "checkpoint/tensor_source.h"

namespace quatrain {

/// An online transform of a vector: constructed from (kind, order, seed), or a stored tensor.
struct Transform {
  std::string kind = "none";  // none | hadamard | grouped-offset-hadamard | ... (docs/artifact.md)
  int64_t order = 0;
  uint64_t seed = 0;
  std::string tensor;
  bool operator==(const Transform&) const = default;
};

struct LinearPolicy {
  ActivationPolicy activation;
  Transform input_transform;
  int64_t weight_group = 0;
  int64_t residual_block = 128;
};

struct KvPolicy {
  int bits = 16;      // 4, 8, or 16 for unquantised
  int64_t group = 0;  // columns of a head that share a scale; 0: the head
  bool symmetric = false;
  Transform key_transform;
  Transform value_transform;
  int64_t sink_tokens = 0;
};

/// config.json's quantization_config.
struct QuantizationConfig {
  static constexpr int kVersion = 1;
  std::string recipe;
  // Linears, embedding, head and every other matrix: bits of their tensors (stored transforms included) in
  // the file over their weights.
  double bits_per_weight = 0;
  LinearPolicy defaults;
  std::map<std::string, LinearPolicy> linears;  // by linear name, e.g. "model.layers.0.mlp.down_proj"
  KvPolicy kv;
  std::map<int, KvPolicy> kv_layers;  // layers that differ
  int embedding_bits = 16;
  int lm_head_bits = 16;
  bool lm_head_tied = false;  // the embedding's planes serve the head too
  std::vector<std::string> unquantized;

  /// The policy of one linear: its own, or the defaults.
  const LinearPolicy& linear(std::string_view name) const;
  const KvPolicy& kv_of(int layer) const;
  /// The stored tensors that any transform names.
  std::set<std::string> transform_tensors() const;

  Json to_json() const;
  /// Throws with the field that is missing, mistyped or out of range.
  static QuantizationConfig from_json(const Json& json, std::string_view where);
};

/// Reads an artifact directory. Construction checks every file, and that each quantised linear has all its
/// tensors.
class ArtifactReader {
 public:
  explicit ArtifactReader(const fs::path& directory);

  const fs::path& path() const { return directory_; }
  const Json& config() const { return config_; }  // the model's own config.json, quantization_config included
  const QuantizationConfig& quantization() const { return quantization_; }
  const TensorSource& tensors() const { return *tensors_; }

  /// Reads every tensor once: one whose bytes do not have the checksum of the index is an error, which any
  /// reading of it would be (an index without checksums, as earlier versions wrote, has none to compare).
  void verify() const;

  bool has_planes(std::string_view linear) const;
  /// NAME.weight_hi, .weight_scale, .weight_lo, .weight_lo_index, .bias as one matrix; misshapen tensors,
  /// indexes out of order, codes past the edge and non-finite scales are errors.
  NibblePlanes planes(std::string_view linear) const;

 private:
  fs::path directory_;
  Json config_;
  QuantizationConfig quantization_;
  std::unique_ptr<TensorSource> tensors_;
};

/// True when `path` is a directory whose config.json says quant_method "quatrain".
bool is_artifact(const fs::path& path);

/// Writes an artifact, streaming: extra memory is at most one shard. Nothing stands under the final name
/// before finish() has flushed and renamed everything.
class ArtifactWriter {
 public:
  explicit ArtifactWriter(const fs::path& directory, size_t shard_bytes = size_t{1} << 30);
  ~ArtifactWriter();

  /// The directory being filled; other files (tokenizer, template) are written into it before finish().
  const fs::path& staging() const;

  /// The planes are checked as ArtifactReader::planes checks them; columns are even.
  void add_planes(const std::string& linear, const NibblePlanes& planes);
  /// A tensor that stays unquantised (or a transform's), rounded to `type` ("F32", "F16" or "BF16"). A value
  /// that is not finite after rounding is an error.
  void add_tensor(const std::string& name, const std::vector<int64_t>& shape, std::span<const float> values,
                  std::string_view type);

  /// Writes config.json (`model_config` plus quantization_config), the index, recipe.toml and
  /// quantization_report.json, opens the result with ArtifactReader, then renames the directory into place.
  /// What was written decides bits_per_weight, `unquantized`, and each linear's weight_group and
  /// residual_block (an entry in `linears` is made where they are not the defaults).
  void finish(Json model_config, QuantizationConfig quantization, std::string_view recipe_toml,
              const Json& report);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quatrain
