// Models and artifacts into the formats of other programs, and their quantised weights into artifacts
// (docs/formats.md).
#pragma once

#include <string>

#include "base/file.h"

namespace quatrain {

struct FormatOptions {
  /// "safetensors", "gguf"; quantised weights also "compressed-tensors", "gptq", "gptq-v2", "artifact".
  std::string to = {};
  /// Of weights that are not packed: "f32", "f16", "bf16" (GGUF also "q8_0", "q4_0", "q4_1"); empty: the
  /// source's, f16 beside packed weights. With GGUF, naming one turns packed weights into it too.
  std::string dtype = {};
  /// Turn layers of an artifact that the format cannot express into 8-bit or 16-bit ones instead of refusing.
  bool fold = false;
};

/// Converts `model` (a hub directory, packed or not, a GGUF, a llama2.c file, an artifact). Integers stay the
/// integers they are. What the target cannot express is refused by name before anything is written; nothing
/// stands under `output` before all is written. A format that is not known is a UsageError.
void convert_format(const fs::path& model, const fs::path& output, const FormatOptions& options);

}  // namespace quatrain
