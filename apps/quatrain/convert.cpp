// quatrain convert: a model from one file format into another, quantised weights included.
#include "formats/convert.h"

#include <fmt/format.h>

#include <memory>

#include "verb.h"

namespace quatrain {

void add_convert(CLI::App& app) {
  struct Options {
    CommonOptions common;
    FormatOptions convert;
    std::string model, output;
  };
  auto options = std::make_shared<Options>();
  CLI::App* verb =
      app.add_subcommand("convert", "Convert a model between file formats, quantised weights as they are");
  verb->footer("Example: quatrain convert model.gguf --to safetensors --dtype bf16 -o model");
  verb->add_option("model", options->model,
                   "directory (16-bit, GPTQ, AWQ, compressed-tensors, artifact), GGUF or llama2.c file")
      ->required();
  verb->add_option("--to", options->convert.to,
                   "safetensors | gguf | gptq | gptq-v2 | compressed-tensors | artifact")
      ->required();
  verb->add_option("--dtype", options->convert.dtype,
                   "of weights that are not packed: f32 | f16 | bf16; GGUF also q8_0, q4_0, q4_1, of all "
                   "weights (default: as "
                   "the source, f16 beside packed weights, f32 for a quantised GGUF)");
  verb->add_flag("--fold", options->convert.fold,
                 "turn layers of an artifact that the format cannot express into 8-bit or 16-bit ones");
  verb->add_option("-o,--output", options->output, "the directory or .gguf file to write")->required();
  add_common(*verb, options->common);
  verb->callback([options] {
    convert_format(options->model, options->output, options->convert);
    if (options->common.json) print_json({{"output", options->output}});
  });
}

}  // namespace quatrain
