// quatrain synth: a model of any shape with random weights.
#include "model/synth.h"

#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "model/inspect.h"
#include "model/shape_file.h"
#include "quantizer_program.h"
#include "verb.h"
#ifdef QUATRAIN_HAVE_TORCH
#include "quant/pipeline.h"
#endif

namespace quatrain {
namespace {

#ifdef QUATRAIN_HAVE_TORCH
void synthesize_artifact(const ModelConfig& config, const std::string& recipe, const std::string& output,
                         const SynthOptions& options) {
  const Recipe loaded = load_recipe(recipe);
  require(
      !loaded.calibrated(),
      "synth --recipe: {} measures a text and so needs a tokenizer, which a synthetic model lacks; take a "
      "recipe that "
      "does not, such as rtn-g64 or w4a8kv4-rtn, or quantize a synthetic model with a tokenizer beside it",
      recipe);
  quantize(synthetic_checkpoint(config, options), loaded, output, {.threads = options.threads});
}
#else
void synthesize_artifact(const ModelConfig&, const std::string&, const std::string&, const SynthOptions&) {
  fail("synth --recipe: this program was built without libtorch; build with -DQUATRAIN_TORCH=ON");
}
#endif

}  // namespace

void add_synth(CLI::App& app) {
  struct Options {
    CommonOptions common;
    SynthOptions synth;
    std::string shape, recipe, output;
    bool bf16 = true, dry_run = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("synth", "Write a model of a given shape with random weights");
  verb->footer("Example: quatrain synth --shape llama3-8b --seed 1 -o llama3-8b-random");
  verb->add_option(
          "--shape", options->shape,
          "a published shape (llama3-8b, qwen3-30b-a3b, ...), or a config.json, params.json or MaxText .yml")
      ->required();
  CLI::Option* bf16 = verb->add_flag("--bf16", options->bf16, "a 16-bit model in BF16 (the default)");
  CLI::Option* recipe = verb->add_option("--recipe", options->recipe,
                                         "an artifact by this recipe instead, without the 16-bit model")
                            ->excludes(bf16);
  verb->add_option("--seed", options->synth.seed, "seed of the weights")->check(whole_number<uint64_t>(0));
  CLI::Option* output = verb->add_option("-o,--output", options->output, "the directory to write");
  verb->add_flag("--dry-run", options->dry_run,
                 "print what `inspect` would of the 16-bit model; write nothing")
      ->excludes(output)
      ->excludes(recipe);
  add_common(*verb, options->common);
  verb->callback([options] {
    if (!options->recipe.empty()) continue_as_quantizer();
    options->synth.threads = options->common.threads;
    const ModelConfig config = find_shape(options->shape);
    if (options->dry_run) {
      const Json report = inspect_checkpoint(*synthetic_checkpoint(config, options->synth), options->shape);
      if (options->common.json)
        print_json(report);
      else
        fmt::print("{}", inspect_text(report));
      return;
    }
    if (options->output.empty()) throw CLI::RequiredError("--output or --dry-run");
    if (options->recipe.empty()) {
      synthesize(config, options->output, options->synth);
    } else {
      synthesize_artifact(config, options->recipe, options->output, options->synth);
    }
    if (options->common.json)
      print_json({{"output", options->output}, {"parameters", parameter_count(config)}});
  });
}

}  // namespace quatrain
