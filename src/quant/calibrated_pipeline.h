// Quantising with transforms and calibration: layer after layer through two streams of hidden states.
#pragma once

#include <memory>

#include "quant/pipeline.h"

namespace quatrain {

/// quantize() for recipes with a [transform] stage or calibrated weights. One layer is resident, and of every
/// calibration sample the hidden states at one layer boundary. Dense models without sandwich norms.
Json quantize_calibrated(std::unique_ptr<Checkpoint> checkpoint, const Recipe& recipe, const fs::path& output,
                         const QuantizeOptions& options);

}  // namespace quatrain
