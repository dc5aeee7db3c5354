// quatrain inspect: what a model file holds, and the policy of every layer.
#include "model/inspect.h"

#include <fmt/format.h>

#include <memory>

#include "verb.h"

namespace quatrain {

void add_inspect(CLI::App& app) {
  struct Options {
    CommonOptions common;
    std::string model;
  };
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand(
      "inspect", "Print architecture, sizes, bits per weight and the policy of every layer");
  verb->footer("Example: quatrain inspect smollm2-quatrain");
  verb->add_option("model", options->model, "directory (16-bit or artifact), GGUF or llama2.c file")
      ->required();
  add_common(*verb, options->common);
  verb->callback([options] {
    const Json report = inspect_model(options->model);
    if (options->common.json) {
      print_json(report);
    } else {
      fmt::print("{}", inspect_text(report));
    }
  });
}

}  // namespace quatrain
