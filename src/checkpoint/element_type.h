// The element types of tensors in files, plain and block-quantised, and how each becomes FP32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace quatrain {

/// A type as files name it. Plain types are blocks of one element.
struct ElementType {
  std::string_view name;
  int64_t block = 1;  // elements of one block, consecutive columns of a row
  size_t bytes = 0;   // of one block
  /// Decodes `blocks` blocks to FP32: exact for every type whose values FP32 can hold; F64, I32 and wider
  /// round to nearest. nullptr where the type can be recognised but not read.
  void (*decode)(const std::byte* in, int64_t blocks, float* out) = nullptr;
};

/// By name ("BF16", "Q4_K"); nullptr for a name that no format here uses.
const ElementType* find_element_type(std::string_view name);

/// Bytes of a tensor of this type. Throws when the row width is no multiple of the block, a dimension is
/// negative, or the size does not fit 63 bits; `where` (file and tensor) begins the text.
size_t tensor_bytes(const ElementType& type, std::span<const int64_t> shape, std::string_view where);

}  // namespace quatrain
