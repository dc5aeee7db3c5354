// quatrain synth: a model of any shape with random weights.
#include "model/synth.h"

#include <fmt/format.h>

#include <memory>

#include "model/shape_file.h"
#include "verb.h"

namespace quatrain {

void add_synth(CLI::App& app) {
  struct Options {
    CommonOptions common;
    SynthOptions synth;
    std::string shape, output;
  };
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("synth", "Write a model of a given shape with random weights");
  verb->footer("Example: quatrain synth --shape llama3-8b --seed 1 -o llama3-8b-random");
  verb->add_option(
          "--shape", options->shape,
          "a published shape (llama3-8b, qwen3-30b-a3b, ...), or a config.json, params.json or MaxText .yml")
      ->required();
  verb->add_flag("--bf16", "16-bit weights in BF16 (the default)");
  verb->add_option("--seed", options->synth.seed, "seed of the weights");
  verb->add_option("-o,--output", options->output, "the directory to write")->required();
  add_common(*verb, options->common);
  verb->callback([options] {
    options->synth.threads = options->common.threads;
    const ModelConfig config = find_shape(options->shape);
    synthesize(config, options->output, options->synth);
    if (options->common.json)
      print_json({{"output", options->output}, {"parameters", parameter_count(config)}});
  });
}

}  // namespace quatrain
