// The smoothing of one layer as a recipe asks for it, alpha searched where the recipe says so.
#pragma once

#include <vector>

#include "base/json.h"
#include "base/thread_pool.h"
#include "checkpoint/artifact.h"
#include "quant/recipe.h"
#include "quant/transforms/smooth.h"

namespace quatrain {

/// Tokens of the whole calibration on which alphas are compared.
inline constexpr int64_t kSearchTokens = 1024;

/// Smooths every site that `recipe` names (transform.inputs: q, k, v and gate, up; value: o; down) and
/// changes `inputs` likewise. transform.alpha "search" takes for each site the alpha of least output error
/// ||Q(X / s) Q(W s)^T - X W^T||^2 on the kept tokens, where Q(X) is the plan's activation quantiser and Q(W)
/// the rounded weights with their residual blocks (MosaicQuant, arXiv 2606.15652, appendix C.1; its grid is
/// not printed, ours is search_alpha()). Returns one entry a site: {"site", "alpha", and when searched
/// "output_error"}, the error relative to ||X W^T||.
Json smooth_layer(DecoderLayer& layer, const ModelConfig& config, const Recipe& recipe,
                  const QuantizationConfig& plan, LayerInputs& inputs, ThreadPool& pool);

}  // namespace quatrain
