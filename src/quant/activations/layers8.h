// DynamicPTQ's choice of 8-bit layers, made from what a model's layers do.
#pragma once

#include <memory>

#include "model/checkpoint.h"
#include "quant/activations/jump_ratio.h"
#include "quant/recipe.h"

namespace quatrain {

/// Tokens of the published statistics: 20 samples of 512.
inline constexpr int64_t kJumpSamples = 20, kJumpLength = 512;

/// `recipe` with activations.layers8 as a list: "rule" takes the layers that both thresholds name
/// (layers_by_threshold()), "rank:N" the N of the largest rank sum (layers_by_rank()); measured on the
/// recipe's calibration text, or on `samples` where there are any, in the rotated stream. A rule that names
/// no layer gives "none", and the log says so. Other recipes come back unchanged.
Recipe choose_layers8(const Checkpoint& checkpoint, Recipe recipe,
                      const std::vector<std::vector<int32_t>>& samples);

}  // namespace quatrain
