// A checkpoint whose canonical tensors are slices of a file's tensors.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "model/checkpoint.h"
#include "model/weight_map.h"

namespace quatrain {

class SlicedCheckpoint : public Checkpoint {
 public:
  /// Matches the source's tensors with the config's (see map_weights, which may clear tied_embeddings).
  SlicedCheckpoint(fs::path path, ModelConfig config, std::unique_ptr<TensorSource> source,
                   const WeightNamer& namer, bool paired);

  bool has(const std::string& name) const override;
  std::vector<int64_t> shape(const std::string& name) const override;
  std::vector<float> read(const std::string& name) const override;
  std::vector<float> read_rows(const std::string& name, int64_t begin, int64_t end) const override;
  std::optional<StoredCodes> read_codes(const std::string& name, int64_t begin, int64_t end) const override;
  ActivationPolicy activation(const std::string& linear) const override;
  std::string stored_type(const std::string& name) const override;
  uint64_t stored_bytes(const std::string& name) const override;
  std::string fingerprint() const override;

 private:
  std::string hash_all() const;
  const WeightSlice& slice(const std::string& name) const;

  std::unique_ptr<TensorSource> source_;
  WeightMap weights_;
  mutable std::once_flag hashed_;
  mutable std::string fingerprint_;
};

}  // namespace quatrain
