// An artifact seen as a checkpoint, so that every exporter reads artifacts and other models alike.
#pragma once

#include <memory>

#include "model/checkpoint.h"

namespace quatrain {

/// Opens an artifact for export. Its weights are integers (read_codes) where its layers are plain: no online
/// transform of the input, and a residual in no block or in all. Other layers, transforms of keys and values
/// included, are refused in one error that names them, unless `fold`:
/// - an input transform T is multiplied into the weights, W <- W T^T, which are then FP32 values, no codes;
/// - a residual in some blocks makes the matrix one of 8-bit codes (exact);
/// - key transforms are left out: they change no score of a cache that is not quantised.
/// An online value transform is refused always.
std::unique_ptr<Checkpoint> open_artifact(const fs::path& directory, bool fold);

}  // namespace quatrain
