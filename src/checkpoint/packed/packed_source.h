// A checkpoint of packed weights seen as one of plain ones: NAME.weight in place of its packed parts.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/packed/packed_config.h"
#include "checkpoint/packed/packed_weight.h"

namespace quatrain {

class PackedSource : public TensorSource {
 public:
  /// Checks every packed matrix: types and shapes of its parts against each other and the config, groups
  /// within range. Errors name file and tensor.
  PackedSource(std::unique_ptr<TensorSource> files, const PackedConfig& config);

  const fs::path& path() const override { return files_->path(); }
  /// The weights, the tensors that are as they seem, and the parts that is_part() knows.
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view name) const override;
  void read_rows(const TensorInfo& tensor, int64_t begin, std::span<float> out) const override;
  /// Of a packed weight: its codes, without scales and zeros.
  std::span<const std::byte> raw(const TensorInfo& tensor) const override;

  /// Of a tensor with all its parts.
  uint64_t bytes(const TensorInfo& tensor) const;

  /// A tensor that belongs to a packed weight: scales, zeros, orders.
  bool is_part(std::string_view name) const { return parts_.contains(name); }
  /// nullptr for a tensor that is not packed.
  const PackedWeight* packed(const TensorInfo& tensor) const;

 private:
  std::unique_ptr<TensorSource> files_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  std::map<std::string, std::unique_ptr<PackedWeight>, std::less<>> weights_;  // by NAME.weight
  std::map<std::string, std::string, std::less<>> codes_;  // NAME.weight: its codes' tensor
  std::set<std::string, std::less<>> parts_;
};

}  // namespace quatrain
