// Weights that others have quantised, as an artifact.
#pragma once

#include "base/file.h"
#include "model/checkpoint.h"

namespace quatrain {

/// Writes the artifact `output`: matrices whose integers the model holds (Checkpoint::read_codes) become
/// nibble planes without loss, 8-bit where the codes need it; others stay floating point in the model's
/// 16-bit type, with a warning that counts them. Activations are quantised as the source says, the KV cache
/// not. A model without a quantised matrix is an error.
void import_artifact(const Checkpoint& model, const fs::path& output);

}  // namespace quatrain
