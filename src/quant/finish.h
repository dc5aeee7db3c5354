// The end of every quantising run: what was counted, the texts beside the weights, the report.
#pragma once

#include "base/json.h"
#include "checkpoint/artifact.h"
#include "model/checkpoint.h"
#include "quant/recipe.h"

namespace quatrain {

/// Writes the model's text files, config.json, recipe.toml and quantization_report.json and puts the artifact
/// in place. `config`: the model as it was written; `linears`: quantised linears of its layers. Returns
/// `report` with "summary" ("quantised X of Y linear layers"), "recipe", "seed" and "source" added; the file
/// has no times.
Json finish_artifact(ArtifactWriter& writer, const Checkpoint& source, ModelConfig config,
                     const QuantizationConfig& quantization, const Recipe& recipe, int64_t linears,
                     Json report);

}  // namespace quatrain
