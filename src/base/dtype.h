// Element types of tensors in files and in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quatrain {

enum class DType { F64, F32, F16, BF16, I64, I32, I16, I8, U8, Bool };

/// Bytes of one element.
constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
    case DType::I64:
      return 8;
    case DType::F32:
    case DType::I32:
      return 4;
    case DType::F16:
    case DType::BF16:
    case DType::I16:
      return 2;
    case DType::I8:
    case DType::U8:
    case DType::Bool:
      return 1;
  }
  return 0;
}

/// The name in safetensors headers: "F32", "BF16", "BOOL", ...
std::string_view name_of(DType dtype);

}  // namespace quatrain
