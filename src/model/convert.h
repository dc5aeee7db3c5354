// A 16-bit model from one file format into the other.
#pragma once

#include <string>

#include "base/file.h"

namespace quatrain {

struct ConvertOptions {
  std::string format;  // "safetensors" (a hub directory) or "gguf"
  /// "f32", "f16", "bf16"; for GGUF also "q8_0", "q4_0", "q4_1" (rows that do not divide by 32 become F16).
  /// Empty: the type that the source's weights have; FP32 for a quantised GGUF, so that no value changes.
  std::string dtype;
  uint64_t shard_bytes = uint64_t{4} << 30;
};

/// Converts `model` (hub directory, GGUF, llama2.c), tokenizer and chat template included where the source
/// has them. Streams: memory is a few rows. A value that is too large for the type is an error with tensor
/// and place; what the target format cannot say is refused by name. Nothing stands under `output` before all
/// is written.
void convert_model(const fs::path& model, const fs::path& output, const ConvertOptions& options);

}  // namespace quatrain
