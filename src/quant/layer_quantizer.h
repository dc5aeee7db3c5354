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

namespace quatrain {

/// Hidden states FP32 [tokens, hidden] of every calibration sample at one layer boundary: of the unquantised
/// model, and of the model whose layers so far are quantised (empty where no stage of the recipe needs it).
struct CalibrationStreams {
  std::vector<torch::Tensor> exact, quantized;
};

struct QuantizedLinear {
  std::string name;
  NibblePlanes planes;
  Json report;
};

struct QuantizedLayer {
  std::vector<QuantizedLinear> linears;
  std::map<std::string, torch::Tensor> transforms;  // the stored ones, by tensor name, FP32
  double stream_error = 0;  // of the quantised stream behind the layer, relative to the unquantised one
};

/// Quantises `layer`, as the transformed unquantised model has it, by `recipe` and moves both streams behind
/// it. The unquantised stream gives the second moments of every input and the transforms; then q, k, v
/// together, o, gate and up together, and down are quantised one after the other, each for the inputs that
/// the quantised layers before it give: quantised as the policies of `plan` say (weights.method
/// "error-aware") or not (gptq). Dense layers without sandwich norms.
QuantizedLayer quantize_layer(DecoderLayer layer, const ModelConfig& config, const Recipe& recipe,
                              const QuantizationConfig& plan, CalibrationStreams& streams, ThreadPool& pool);

}  // namespace quatrain
