// quatrain inspect: what a model file holds, and the policy of every layer.
#include "model/inspect.h"

#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "verb.h"
#ifdef QUATRAIN_HAVE_TORCH
#include "quant/activations/jump_ratio.h"
#include "quant/calibration.h"
#endif

namespace quatrain {
namespace {

struct InspectOptions {
  CommonOptions common;
  std::string model;
  bool jump_ratio = false;
};

#ifdef QUATRAIN_HAVE_TORCH
// As published: 20 samples of 512 tokens, the stream rotated.
void print_jump_ratio(const InspectOptions& options) {
  Recipe recipe;
  recipe.calibration.samples = 20;
  recipe.calibration.length = 512;
  const CalibrationSamples samples = load_calibration(recipe, options.model);
  const auto jumps = measure_jumps(options.model, samples.ids, true);
  if (options.common.json)
    print_json(jump_json(jumps));
  else
    fmt::print("{}", jump_text(jumps));
}
#else
void print_jump_ratio(const InspectOptions&) {
  fail("inspect: --jump-ratio needs a program built with libtorch; build with -DQUATRAIN_TORCH=ON");
}
#endif

void run_inspect(const InspectOptions& options) {
  if (options.jump_ratio) return print_jump_ratio(options);
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
  add_common(*verb, options->common);
  verb->callback([options] { run_inspect(*options); });
}

}  // namespace quatrain
