// Quantising a checkpoint into an artifact, one layer resident at a time.
#pragma once

#include <memory>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "model/checkpoint.h"
#include "quant/recipe.h"

namespace quatrain {

struct QuantizeOptions {
  int threads = 0;
  // cpu, cuda or cuda:N, where libtorch has a GPU: recipes with transforms or calibration compute there
  std::string device = "cpu";
  uint64_t max_ram = 0;  // bytes; 0: no limit. A run predicted to need more is refused before it starts
  // Continue a killed run of the same model, recipe and samples: its finished layers lie in OUTPUT.journal,
  // and the files end up bit-identical to those of a run that was not killed. Recipes without calibration
  // have no journal and start again.
  bool resume = false;
  std::vector<std::vector<int32_t>> samples = {};  // calibration tokens instead of the recipe's text
  fs::path kept = {};  // a folder for what several recipes measure alike (transforms/kept_rotation.h)
};

/// Quantises the model at `model` (hub directory, GGUF, llama2.c) by `recipe` and writes the artifact
/// `output`, which must not exist. Of recipes without transforms and calibration one matrix is resident at a
/// time, of others one layer, and the hidden states of all samples; the predicted peak of memory is logged
/// before the start. Returns the report that was written as quantization_report.json: summary ("quantised X
/// of Y linear layers"), relative weight error, residual blocks and time of every linear, notes (groups that
/// did not divide), sizes, and the source's fingerprint.
Json quantize(const fs::path& model, const Recipe& recipe, const fs::path& output,
              const QuantizeOptions& options);
/// The same for a model that is open already, or that is no file at all (synthetic_checkpoint).
Json quantize(std::unique_ptr<Checkpoint> checkpoint, const Recipe& recipe, const fs::path& output,
              const QuantizeOptions& options);

}  // namespace quatrain
