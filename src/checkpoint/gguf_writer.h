// Writes GGUF version 3: metadata and tensors declared first, then the tensors' values, streamed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "checkpoint/gguf.h"

namespace quatrain {

/// Nothing stands under the path before finish(). Order of use: set()s and declare()s, then write() of every
/// tensor in the order declared, then finish().
class GgufWriter {
 public:
  explicit GgufWriter(const fs::path& path);

  /// Metadata in the order given (general.architecture belongs first).
  void set(std::string_view key, const GgufValue& value);
  void set_string(std::string_view key, std::string value);
  void set_u32(std::string_view key, uint32_t value);
  void set_f32(std::string_view key, float value);
  void set_bool(std::string_view key, bool value);
  void set_strings(std::string_view key, std::vector<std::string> values);
  void set_i32s(std::string_view key, const std::vector<int32_t>& values);
  void set_f32s(std::string_view key, const std::vector<float>& values);

  /// A tensor to come; `shape` outermost first, at most 4 dimensions; F32, F16, BF16, Q8_0, Q4_0 or Q4_1.
  void declare(const std::string& name, const std::vector<int64_t>& shape, std::string_view type);
  /// The next whole rows of the tensor whose turn it is, rounded to its type. A value that is not finite, or
  /// is too large for the type, is an error.
  void write(std::string_view name, std::span<const float> rows);
  /// The same for rows that are blocks of its type already (Q4_0, Q8_0), little-endian.
  void write_blocks(std::string_view name, std::span<const std::byte> blocks);
  /// Throws when a declared tensor is incomplete.
  void finish();

 private:
  struct Tensor {
    TensorInfo info;
    uint64_t offset = 0, bytes = 0;
  };
  void write_header();
  const Tensor& take_turn(std::string_view name);  // of which rows come next; brings the file to its offset
  void append_rows(const Tensor& tensor, std::span<const std::byte> bytes);

  fs::path path_;
  AtomicFile file_;
  std::string metadata_;
  uint64_t keys_ = 0;
  std::vector<Tensor> tensors_;
  uint64_t data_begin_ = 0;
  size_t current_ = 0;  // the tensor whose turn it is
  bool header_written_ = false;
};

}  // namespace quatrain
