// Refinement: the scales of an artifact's weights and its norms trained so that its predictions follow the
// original model's.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "model/checkpoint.h"
#include "quant/recipe.h"

namespace quatrain {

/// Two samples a step, and as many that are not trained on.
constexpr int64_t kRefinementBatch = 2, kHeldOutSamples = kRefinementBatch,
                  kLeastRefinementSamples = kRefinementBatch + kHeldOutSamples;

/// Writes `output`: the artifact `source` with refined weight scales and norms. Minimises the mean KL
/// divergence of its next tokens from those of `original` (the model that was quantised) by Adam, two samples
/// a step: s <- s (1 + d) for scales and gains, the step in d `recipe.refine.rate` and `norm_rate` (0: norms
/// stay), decaying along a cosine; what is kept is the mean over the second half of the steps. Rounding of
/// activations passes gradients straight through, codes and transforms stay. Of `samples`, each cut to
/// recipe.refine.length, the first recipe.refine.samples are trained on and two more are held out: where
/// their divergence does not fall, everything stays. Returns quantization_report.json's report with "refine"
/// added.
Json refine(const std::shared_ptr<const Checkpoint>& original, const fs::path& source, const Recipe& recipe,
            const std::vector<std::vector<int32_t>>& samples, const fs::path& output, int threads,
            torch::Device device);

}  // namespace quatrain
