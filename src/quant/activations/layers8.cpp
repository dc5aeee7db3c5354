#include "quant/activations/layers8.h"

#include "base/error.h"
#include "base/log.h"
#include "quant/calibration.h"
#include "quant/reference/weight_source.h"

namespace quatrain {

Recipe choose_layers8(const Checkpoint& checkpoint, Recipe recipe,
                      const std::vector<std::vector<int32_t>>& samples) {
  if (!recipe.measures_layers8()) return recipe;
  const std::string asked = recipe.activations.layers8;
  const int64_t count = asked == "rule" ? 0 : std::stoll(asked.substr(asked.find(':') + 1));
  require(count <= checkpoint.config().layers,
          "recipe {}: activations.layers8 = \"{}\": the model has {} layers", recipe.name, asked,
          checkpoint.config().layers);
  std::vector<std::vector<int32_t>> ids = samples;
  if (ids.empty()) {
    Recipe short_text = recipe;
    short_text.calibration.samples = kJumpSamples;
    short_text.calibration.length = kJumpLength;
    ids = load_calibration(short_text, checkpoint.path()).ids;
  }
  // The source only reads: it may borrow the checkpoint while it lives.
  const std::shared_ptr<const Checkpoint> borrowed(&checkpoint, [](const Checkpoint*) {});
  const std::vector<LayerJump> jumps =
      measure_jumps(checkpoint_weight_source(borrowed), checkpoint.path().string(), ids, true);
  const std::vector<int64_t> layers =
      asked == "rule" ? layers_by_threshold(jumps) : layers_by_rank(jumps, count);
  recipe.activations.layers8 = layers.empty() ? "none" : fmt::format("{}", fmt::join(layers, ","));
  log_info("activations.layers8 = \"{}\": {}", asked,
           layers.empty() ? "no layer passes both thresholds, every layer takes 4-bit inputs"
                          : "layers " + recipe.activations.layers8);
  return recipe;
}

}  // namespace quatrain
