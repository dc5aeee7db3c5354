// The names, order and bytes of one checkpoint's tensors: the part that every format's reader shares.
#pragma once

#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/tensor_source.h"

namespace quatrain {

/// A TensorSource over bytes that the derived reader keeps alive (a map, or a caller's buffer).
class TensorTable : public TensorSource {
 public:
  const fs::path& path() const override { return path_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view name) const override;
  void read_rows(const TensorInfo& tensor, int64_t begin, std::span<float> out) const override;
  std::span<const std::byte> raw(const TensorInfo& tensor) const override;

 protected:
  explicit TensorTable(fs::path path) : path_(std::move(path)) {}
  /// `bytes` has been checked against type and shape. A name that is there already is an error; `file` is
  /// what the error calls the place.
  void add(TensorInfo tensor, std::span<const std::byte> bytes, std::string_view file);

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view name) const { return std::hash<std::string_view>{}(name); }
  };
  fs::path path_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::span<const std::byte>> bytes_;
  std::unordered_map<std::string, size_t, Hash, std::equal_to<>> index_;
};

}  // namespace quatrain
