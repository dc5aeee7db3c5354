// A model from one file format into the other.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/file.h"
#include "model/checkpoint.h"
#include "model/stored_layout.h"

namespace quatrain {

struct ConvertOptions {
  std::string format;  // "safetensors" (a hub directory) or "gguf"
  /// "f32", "f16", "bf16"; for GGUF also "q8_0", "q4_0", "q4_1" (rows that do not divide by 32 become F16).
  /// Empty: the type that the source's weights have; FP32 for a quantised GGUF, so that no value changes. In
  /// GGUF an empty type keeps integers that the source holds (Checkpoint::read_codes) as Q4_0 or Q8_0.
  std::string dtype;
  uint64_t shard_bytes = uint64_t{4} << 30;
};

/// Converts `model` (hub directory, GGUF, llama2.c), tokenizer and chat template included where the source
/// has them. Streams: memory is a few rows. A value that is too large for the type is an error with tensor
/// and place; what the target format cannot say is refused by name. Nothing stands under `output` before all
/// is written.
void convert_model(const Checkpoint& model, const fs::path& output, const ConvertOptions& options);

/// The same for a file or directory.
void convert_model(const fs::path& model, const fs::path& output, const ConvertOptions& options);

/// "f16" or "float16": "F16", and so on for every type that ConvertOptions::dtype names.
std::string stored_type_of(const std::string& dtype);

/// Calls write(rows) with the values of a stored tensor in FP32, whole rows at a time, in order. `norm_shift`
/// is added to the gains of norms.
void stream_tensor(const Checkpoint& model, const StoredTensor& tensor, float norm_shift,
                   const std::function<void(std::span<const float>)>& write);

/// The integers of a stored tensor, its parts' rows one after another in the tensor's order; nullopt where a
/// part has none or the parts do not share a group. Parts of 4 and of 8 bits together are 8-bit codes.
std::optional<StoredCodes> tensor_codes(const Checkpoint& model, const StoredTensor& tensor);

}  // namespace quatrain
