// The element types of tensors in files, plain and block-quantised, and how each becomes FP32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace quatrain {

/// A type as files name it. Plain types are blocks of one element.
struct ElementType {
  std::string_view name;
  int64_t block = 1;  // elements of one block, consecutive columns of a row
  size_t bytes = 0;   // of one block
  /// Decodes `blocks` blocks to FP32: exact for every type whose values FP32 can hold; F64, I32 and wider
  /// round to nearest. nullptr where the type can be recognised but not read.
  void (*decode)(const std::byte* in, int64_t blocks, float* out) = nullptr;
  /// Rounds FP32 to the type, to nearest even; block types as ggml's reference quantisers. nullptr where
  /// nothing here writes the type.
  void (*encode)(const float* in, int64_t blocks, std::byte* out) = nullptr;
};

/// By name ("BF16", "Q4_K"); nullptr for a name that no format here uses.
const ElementType* find_element_type(std::string_view name);

/// I8 ... U64 and BOOL: indices and packed codes, no weights.
bool is_integer_type(std::string_view name);

/// Bytes of a tensor of this type. Throws when the row width is no multiple of the block, a dimension is
/// negative, or the size does not fit 63 bits; `where` (file and tensor) begins the text.
size_t tensor_bytes(const ElementType& type, std::span<const int64_t> shape, std::string_view where);

/// `values` (whole blocks) rounded to the type. A value that is not finite, or that the type would turn into
/// infinity, is an error that gives its place in `values`.
std::vector<std::byte> encode_values(const ElementType& type, std::span<const float> values,
                                     std::string_view where);

}  // namespace quatrain
