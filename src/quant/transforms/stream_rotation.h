// The orthogonal change of basis of the residual stream that a recipe asks for, made from calibration text.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "quant/recipe.h"
#include "quant/reference/decoder_layer.h"
#include "quant/sample_work.h"

namespace quatrain {

/// FP64 [hidden, hidden] on the CPU for merge_rotation(), undefined where the recipe asks for none: a random
/// Hadamard, OffQ's rotation (from the inputs of q, k, v and of gate, up of every layer, of as many samples
/// as fill its rank), or a permutation of channels in descending order of their energy over the same inputs
/// (residual.sort). What did not fit a width goes into `notes`.
torch::Tensor stream_rotation(const std::shared_ptr<const Checkpoint>& checkpoint, const Recipe& recipe,
                              const std::vector<std::vector<int32_t>>& samples,
                              std::vector<std::string>& notes, const SampleWork& work);

}  // namespace quatrain
