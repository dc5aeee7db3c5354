// The first byte chooses: a safetensors file, or the text of an index.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "checkpoint/element_type.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quatrain;
  if (size == 0) return 0;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  try {
    if (data[0] == 'i') {
      parse_safetensors_index({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "fuzz");
      return 0;
    }
    for (const SafetensorsEntry& entry : parse_safetensors(bytes, "fuzz")) {
      const ElementType* type = find_element_type(entry.info.type);
      std::vector<float> values(entry.bytes.size() / type->bytes);
      if (type->decode != nullptr)
        type->decode(entry.bytes.data(), static_cast<int64_t>(values.size()), values.data());
    }
  } catch (const Error&) {
    // what a bad file must give
  }
  return 0;
}
