// What every checkpoint format looks like to the layers above: named tensors, read as FP32 or as raw bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"

namespace quatrain {

/// One tensor of a file. Shapes are row-major, outermost first (GGUF's reversed order is undone).
struct TensorInfo {
  std::string name;
  std::string type;            // "F32", "BF16", "Q4_1", ...: as the file calls it
  std::vector<int64_t> shape;  // a scalar has no dimensions

  int64_t elements() const;
  /// All dimensions but the last, multiplied: the rows that read_rows counts.
  int64_t rows() const;
  int64_t columns() const;
};

/// Read-only tensors of one checkpoint. Thread-safe after construction.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  /// Where the tensors come from, for messages.
  virtual const fs::path& path() const = 0;
  /// Every tensor, in file order.
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  /// nullptr when absent.
  virtual const TensorInfo* find(std::string_view name) const = 0;
  /// Rows [begin, begin + out.size() / columns) converted to FP32, exactly (dequantised where the type is
  /// quantised).
  virtual void read_rows(const TensorInfo& tensor, int64_t begin, std::span<float> out) const = 0;
  /// The tensor's bytes in the file, little-endian, in its own type. Where the checkpoint has checksums, the
  /// first read of a tensor, of this kind or the other, compares its own: an error that names file and
  /// tensor.
  virtual std::span<const std::byte> raw(const TensorInfo& tensor) const = 0;
};

/// safetensors: a file, or a directory with model.safetensors or model.safetensors.index.json.
/// Header length, offsets, overlaps, sizes and shards are checked before a byte is trusted.
std::unique_ptr<TensorSource> open_safetensors(const fs::path& path);

}  // namespace quatrain
