// One layer of the unquantised model with the transforms of a recipe merged into it, and what was measured on
// the way.
#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/thread_pool.h"
#include "checkpoint/artifact.h"
#include "quant/layer_moments.h"
#include "quant/recipe.h"
#include "quant/residual/score.h"
#include "quant/transforms/site_inputs.h"
#include "quant/weights/rtn.h"

namespace quatrain {

struct TransformedLayer {
  DecoderLayer layer;
  ExactPass pass;      // of the layer as it came
  LayerInputs inputs;  // what the transformed linears see; filled where recipe.watches_inputs()
  std::map<std::string, torch::Tensor> transforms;  // the stored ones, by tensor name, FP32
  std::map<std::string, torch::Tensor> rescaled;    // norms and routers that took scales, by name
  Json smoothing = Json::array();                   // smooth_layer()'s report
};

/// Runs `hidden` (the unquantised stream before the layer; may be empty where no stage looks at it) through
/// `layer` and merges the transforms of `recipe` into its linears, as the policies of `plan` name them:
/// smoothing, channel order, values, keys, then the inputs of q, k, v, of gate, up, of o and of down;
/// balanced diagonals go into what produces the input, those of values and inner channels first, so that the
/// rows of v and up are scaled before they are weighed. Experts share the transforms of their inputs; their
/// inner channels are dealt into offset groups one by one.
TransformedLayer transform_layer(DecoderLayer layer, const ModelConfig& config, const Recipe& recipe,
                                 const QuantizationConfig& plan, const std::vector<torch::Tensor>& hidden,
                                 const SampleWork& work, ThreadPool& pool);

/// The scores of every residual block of a transformed layer (residual.score) by linear, from its unquantised
/// inputs alone.
std::map<std::string, ScoredMatrix> score_blocks(TransformedLayer& transformed, const Recipe& recipe,
                                                 const QuantizationConfig& plan, ThreadPool& pool);

/// The scale of every weight of `linear`, FP32 [out, in], when it is rounded to nearest.
torch::Tensor nearest_steps(const ReferenceLinear& linear, const Recipe& recipe, const LinearPolicy& policy,
                            ThreadPool& pool);

/// `weight` rounded to nearest.
NibblePlanes round_to_nearest(const std::string& name, const torch::Tensor& weight,
                              const WeightFormat& format, ThreadPool& pool);

}  // namespace quatrain
