// One layer of a calibrated recipe: its transforms in closed form, then its weights, in the order they run.
#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/thread_pool.h"
#include "checkpoint/artifact.h"
#include "quant/recipe.h"
#include "quant/reference/decoder_layer.h"
#include "quant/residual/score.h"
#include "quant/sample_work.h"

namespace quatrain {

/// Hidden states FP32 [tokens, hidden] of every calibration sample at one layer boundary: of the unquantised
/// model, and of the model whose layers so far are quantised (empty where no stage of the recipe needs it).
struct CalibrationStreams {
  std::vector<torch::Tensor> exact, quantized;
  SampleWork work = {};
};

/// Residual blocks by linear that were chosen before anything is quantised; linears it lacks choose their
/// own.
using BlockChoice = std::map<std::string, std::vector<int32_t>>;

struct QuantizedLinear {
  std::string name;
  NibblePlanes planes;
  Json report;
};

struct QuantizedLayer {
  std::vector<QuantizedLinear> linears;
  std::map<std::string, torch::Tensor> transforms;  // the stored ones, by tensor name, FP32
  std::map<std::string, torch::Tensor> rescaled;    // norms and routers that took scales, by name
  Json smoothing = Json::array();                   // smooth_layer()'s report
  Json coverage;  // of experts: {"expert_tokens": [...], "starved": [names]}; null in dense layers
  double transform_seconds = 0;  // of the pass over the unquantised layer and of making its transforms
  double stream_error = 0;       // of the quantised stream behind the layer, relative to the unquantised one
};

/// Quantises `layer`, as the transformed unquantised model has it, by `recipe` and moves both streams behind
/// it. The unquantised stream gives the second moments of every input and the transforms; then q, k, v
/// together, o, gate and up together, and down are quantised one after the other, each for the inputs that
/// the quantised layers before it give: quantised as the policies of `plan` say (weights.method
/// "error-aware") or not (gptq). Experts follow one another, each for the tokens that the router sends to it
/// in the quantised stream (its Hessian and its target); one that fewer tokens reach than a quarter of its
/// widest input takes every token instead and is listed as starved.
QuantizedLayer quantize_layer(DecoderLayer layer, const ModelConfig& config, const Recipe& recipe,
                              const QuantizationConfig& plan, CalibrationStreams& streams, ThreadPool& pool,
                              const BlockChoice& chosen = {});

/// FP32 [rows, columns].
torch::Tensor dequantized(const NibblePlanes& planes, torch::Device device, ThreadPool& pool);

/// The scores of every residual block of `layer` (residual.score) after its transforms, by linear, from the
/// unquantised stream alone; moves streams.exact behind the layer.
std::map<std::string, ScoredMatrix> score_layer(DecoderLayer layer, const ModelConfig& config,
                                                const Recipe& recipe, const QuantizationConfig& plan,
                                                CalibrationStreams& streams, ThreadPool& pool);

}  // namespace quatrain
