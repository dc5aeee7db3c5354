// A model with folded norm gains and a rotated residual stream: the same function, other numbers.
#pragma once

#include <torch/torch.h>

#include <memory>

#include "quant/reference/weight_source.h"

namespace quatrain {

/// Folds every norm gain (the final one too) into the linears and the router that follow, then merges the
/// residual rotation x <- x Q, FP64 [hidden, hidden], orthogonal (undefined: none), in FP64, rounded once to
/// FP32. Tied embeddings are untied. A model whose norms follow its linears (sandwich norms: Gemma) cannot
/// take a merged rotation and is refused by name.
std::unique_ptr<WeightSource> merge_rotation(std::unique_ptr<WeightSource> source, torch::Tensor rotation);

}  // namespace quatrain
