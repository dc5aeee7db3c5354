// Quantising with transforms and calibration: layer after layer through two streams of hidden states.
#pragma once

#include <memory>

#include "quant/pipeline.h"

namespace quatrain {

/// quantize() for recipes with a [transform] stage or calibrated weights. One layer is resident, and of every
/// calibration sample the hidden states at one layer boundary. Where norms stand behind the linears (Gemma 3)
/// the residual stream stays as it is: no rotation, no residual.sort, no weights.stream. In a mixture of
/// experts all share what is made of their inputs; what would need statistics of each is refused: smoothing,
/// residual.sort, "delta-hessian".
Json quantize_calibrated(std::shared_ptr<const Checkpoint> checkpoint, const Recipe& recipe,
                         const fs::path& output, const QuantizeOptions& options);

}  // namespace quatrain
