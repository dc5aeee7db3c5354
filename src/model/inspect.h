// What a model file holds: architecture, sizes, and the policy of every layer.
#pragma once

#include <string>

#include "base/file.h"
#include "base/json.h"
#include "model/checkpoint.h"

namespace quatrain {

/// {"architecture", "parameters", "bytes", "bits_per_weight", "effective_bits": {"weights", "transforms",
/// "activations", "kv"}, "config": {...}, "layers": [{"layer", "parameters", "bytes", "linears": [...], "kv":
/// {...}}]} of a hub directory, GGUF, llama2.c file or artifact. Every figure is counted from the tensors in
/// the file: bits_per_weight over linears, embedding and head; effective_bits.weights over the linears alone;
/// both with scales, residual indices and stored transforms, whose share is effective_bits.transforms;
/// activations and kv with their scales and zeros.
Json inspect_model(const fs::path& model);

/// The same of an open 16-bit checkpoint, called `name` in the report.
Json inspect_checkpoint(const Checkpoint& checkpoint, const std::string& name);

/// The same for people.
std::string inspect_text(const Json& report);

}  // namespace quatrain
