// quatrain convert: a 16-bit model from one file format into another.
#include "model/convert.h"

#include <fmt/format.h>

#include <memory>

#include "verb.h"

namespace quatrain {

void add_convert(CLI::App& app) {
  struct Options {
    CommonOptions common;
    ConvertOptions convert;
    std::string model, output;
  };
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("convert", "Convert a 16-bit model between GGUF and safetensors");
  verb->footer("Example: quatrain convert model.gguf --to safetensors --dtype bf16 -o model");
  verb->add_option("model", options->model, "directory, GGUF or llama2.c file")->required();
  verb->add_option("--to", options->convert.format, "safetensors | gguf")->required();
  verb->add_option(
      "--dtype", options->convert.dtype,
      "f32 | f16 | bf16 (GGUF also q8_0, q4_0, q4_1); default: as the source, f32 for a quantised GGUF");
  verb->add_option("-o,--output", options->output, "the directory or .gguf file to write")->required();
  add_common(*verb, options->common);
  verb->callback([options] {
    convert_model(options->model, options->output, options->convert);
    if (options->common.json) print_json({{"output", options->output}});
  });
}

}  // namespace quatrain
