// A whole GGUF file: opened, its usual metadata fetched, every tensor of a readable type read.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "checkpoint/element_type.h"
#include "checkpoint/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quatrain;
  try {
    const GgufFile file({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
    for (const TensorInfo& tensor : file.tensors()) {
      if (find_element_type(tensor.type)->decode == nullptr) continue;
      std::vector<float> values(static_cast<size_t>(tensor.elements()));
      file.read_rows(tensor, 0, values);
    }
    for (const auto& [key, value] : file.metadata()) {
      if (std::holds_alternative<std::string>(value.data))
        file.get<std::string>(key);
      else if (std::holds_alternative<std::vector<std::string>>(value.data))
        file.get<std::vector<std::string>>(key);
      else if (value.is_array())
        file.get<std::vector<int64_t>>(key);
      else
        file.get<int64_t>(key);
    }
  } catch (const Error&) {
    // what a bad file must give
  }
  return 0;
}
