// A model with its transforms merged into the weights: the same function, other numbers.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "quant/reference/weight_source.h"

namespace quatrain {

struct MergedTransforms {
  /// FP64 [hidden, hidden], orthogonal: the residual stream x becomes x Q. Undefined: none (norm gains are
  /// folded all the same).
  torch::Tensor residual;
  /// FP64 [head_dim, head_dim] a layer: every head of the values v becomes v R, undone in o_proj. R need not
  /// be orthogonal. Empty or undefined: none.
  std::vector<torch::Tensor> value;
};

/// Folds every norm gain (the final one too) into the linears and the router that follow, then merges the
/// rotations, in FP64, rounded once to FP32. Tied embeddings are untied. A model whose norms follow its
/// linears (sandwich norms: Gemma) cannot take a merged rotation and is refused by name.
std::unique_ptr<WeightSource> merge_transforms(std::unique_ptr<WeightSource> source,
                                               MergedTransforms transforms);

}  // namespace quatrain
