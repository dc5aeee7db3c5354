// quatrain inspect: what a model file holds, and the policy of every layer.
#include "model/inspect.h"

#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "quantizer_program.h"
#include "verb.h"
#include "wide_products.h"
#ifdef QUATRAIN_HAVE_TORCH
#include "quant/activations/layers8.h"
#include "quant/calibration.h"
#include "quant/residual/study.h"
#endif

namespace quatrain {
namespace {

struct InspectOptions {
  CommonOptions common;
  std::string model;
  bool jump_ratio = false;
  std::vector<int64_t> residual_layers;
  int64_t samples = 8;
  double alpha = 0.85;
};

#ifdef QUATRAIN_HAVE_TORCH
// As published: 20 samples of 512 tokens, the stream rotated.
void print_jump_ratio(const InspectOptions& options) {
  restart_with_wide_products();
  Recipe recipe;
  recipe.calibration.samples = kJumpSamples;
  recipe.calibration.length = kJumpLength;
  const CalibrationSamples samples = load_calibration(recipe, options.model);
  const auto jumps = measure_jumps(options.model, samples.ids, true, options.common.threads);
  if (options.common.json)
    print_json(jump_json(jumps));
  else
    fmt::print("{}", jump_text(jumps));
}
void print_residual_study(const InspectOptions& options) {
  Recipe recipe;
  recipe.calibration.samples = options.samples;
  ResidualStudyOptions study;
  study.layers = options.residual_layers;
  study.alpha = options.alpha;
  const CalibrationSamples samples = load_calibration(recipe, options.model);
  const auto rows = residual_study(options.model, samples.ids, study);
  if (options.common.json)
    print_json(residual_study_json(rows, study));
  else
    fmt::print("{}", residual_study_text(rows, study));
}
#else
void print_residual_study(const InspectOptions&) {
  fail("inspect: --residual-study needs a program built with libtorch; build with -DQUATRAIN_TORCH=ON");
}
void print_jump_ratio(const InspectOptions&) {
  fail("inspect: --jump-ratio needs a program built with libtorch; build with -DQUATRAIN_TORCH=ON");
}
#endif

void run_inspect(const InspectOptions& options) {
  if (options.jump_ratio) return print_jump_ratio(options);
  if (!options.residual_layers.empty()) return print_residual_study(options);
  const Json report = inspect_model(options.model);
  if (options.common.json)
    print_json(report);
  else
    fmt::print("{}", inspect_text(report));
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* verb = app.add_subcommand(
      "inspect", "Print architecture, sizes, bits per weight and the policy of every layer");
  verb->footer("Example: quatrain inspect smollm2-quatrain");
  verb->add_option("model", options->model, "directory (16-bit or artifact), GGUF or llama2.c file")
      ->required();
  verb->add_flag("--jump-ratio", options->jump_ratio,
                 "print each layer's jump ratio and historical-feature SNR (DynamicPTQ) instead");
  verb->add_option(
          "--residual-study", options->residual_layers,
          "print how much output distortion residual blocks give back in these layers (from 0), by the "
          "rule that chooses them (MosaicQuant), instead")
      ->delimiter(',')
      ->excludes("--jump-ratio");
  verb->add_option("--samples", options->samples, "calibration samples of the residual study")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  verb->add_option("--alpha", options->alpha, "smoothing before the residual study; 0: none")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  add_common(*verb, options->common);
  verb->callback([options] {
    if (options->jump_ratio || !options->residual_layers.empty()) continue_as_quantizer();
    run_inspect(*options);
  });
}

}  // namespace quatrain
