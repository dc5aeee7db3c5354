// quantization_config: what is accepted must survive being written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/artifact.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quatrain;
  Json written;
  try {
    const Json json = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    written = QuantizationConfig::from_json(json, "fuzz").to_json();
  } catch (const Error&) {
    return 0;  // what a bad file must give
  }
  if (QuantizationConfig::from_json(written, "fuzz").to_json() != written) std::abort();
  return 0;
}
