// Small random models held in memory: as a checkpoint, and as an artifact quantised by rounding to nearest.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/number_format.h"
#include "checkpoint/artifact.h"
#include "model/checkpoint.h"
#include "model/config.h"

namespace quatrain {

/// Two layers, four query heads on two KV heads: what a test does not change.
ModelConfig small_config();

class MemoryCheckpoint : public Checkpoint {
 public:
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };

  /// Random weights for every tensor that `config` asks for.
  explicit MemoryCheckpoint(ModelConfig config, uint64_t seed = 1);

  std::map<std::string, Tensor>& tensors() { return tensors_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  void untie() { config_.tied_embeddings = false; }

  bool has(const std::string& name) const override { return tensors_.contains(name); }
  std::vector<int64_t> shape(const std::string& name) const override { return tensors_.at(name).shape; }
  std::vector<float> read(const std::string& name) const override { return tensors_.at(name).values; }
  std::vector<float> read_rows(const std::string& name, int64_t begin, int64_t end) const override;
  std::string stored_type(const std::string&) const override { return "F32"; }
  uint64_t stored_bytes(const std::string& name) const override {
    return 4 * tensors_.at(name).values.size();
  }
  std::string fingerprint() const override { return "memory"; }

 private:
  std::map<std::string, Tensor> tensors_;
};

/// Round to nearest: max-abs scales, every third block of residuals present.
NibblePlanes round_to_planes(const MemoryCheckpoint::Tensor& weight, int64_t group, int64_t residual_block,
                             const std::vector<float>& bias);

/// Writes `model` to `directory`, its linears (and the embedding where quantization.embedding_bits < 16, the
/// head where lm_head_bits < 16) in planes. Returns the weights that a reader sees, dequantised.
MemoryCheckpoint write_artifact(const MemoryCheckpoint& model, const QuantizationConfig& quantization,
                                const fs::path& directory);

/// A folder under the system's temporary one, removed at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace quatrain
