// quatrain quantize: a 16-bit model and a recipe to an artifact.
#include <fmt/core.h>

#include <memory>

#include "base/error.h"
#include "ops/cpu/isa.h"
#include "quantizer_program.h"
#include "verb.h"
#include "wide_products.h"
#ifdef QUATRAIN_HAVE_TORCH
#include "eval/agreement.h"
#include "quant/pipeline.h"
#endif

namespace quatrain {
namespace {

struct QuantizeVerbOptions {
  CommonOptions common;
  std::string model, recipe = "rtn-g64", output, max_ram, budget_bits, max_slowdown;
  std::vector<std::string> overrides;
  bool no_check = false, resume = false;
};

#ifdef QUATRAIN_HAVE_TORCH
void run_quantize(const QuantizeVerbOptions& options) {
  restart_with_wide_products();
  ops::active_isa();  // a wrong QUATRAIN_ISA is an error now, not when the artifact is checked
  std::vector<std::string> overrides = options.overrides;
  if (!options.budget_bits.empty()) overrides.push_back("plan.budget_bits=" + options.budget_bits);
  if (!options.max_slowdown.empty()) overrides.push_back("plan.max_slowdown=" + options.max_slowdown);
  const Recipe recipe = load_recipe(options.recipe, overrides);
  QuantizeOptions settings;
  settings.threads = options.common.threads;
  settings.device = options.common.device;
  settings.resume = options.resume;
  if (!options.max_ram.empty()) settings.max_ram = parse_bytes(options.max_ram, "--max-ram");
  Json report = quantize(options.model, recipe, options.output, settings);
  if (!options.no_check) {
    const Agreement agreement = check_artifact(options.output, options.common.threads);
    report["check"] = agreement.to_json();
    if (!options.common.json) fmt::print("{}\n", agreement.summary());
  }
  if (options.common.json) {
    print_json(report);
  } else {
    fmt::print("{}: {} by recipe {}\n", options.output, report.value("summary", ""), recipe.name);
  }
}
#else
void run_quantize(const QuantizeVerbOptions&) {
  fail("quantize: this program was built without libtorch; build with -DQUATRAIN_TORCH=ON");
}
#endif

}  // namespace

void add_quantize(CLI::App& app) {
  auto options = std::make_shared<QuantizeVerbOptions>();
  CLI::App* verb = app.add_subcommand("quantize", "Turn a 16-bit model into a 4-bit artifact");
  verb->footer("Example: quatrain quantize model.gguf --recipe rtn-g64 --set activations.bits=8 -o artifact");
  verb->add_option("model", options->model, "hub directory, GGUF or llama2.c file")->required();
  verb->add_option("--recipe", options->recipe, "a shipped recipe or a TOML file")->capture_default_str();
  verb->add_option("--set", options->overrides, "override a field: stage.field=value (repeatable)");
  verb->add_option("-o,--output", options->output, "the artifact directory; must not exist")->required();
  verb->add_option("--budget-bits", options->budget_bits,
                   "buy residual blocks where they help most, up to this mean of bits a weight");
  verb->add_option("--max-slowdown", options->max_slowdown,
                   "buy residual blocks and 8-bit inputs where they help most, up to this factor of time");
  verb->add_flag("--resume", options->resume, "continue a killed run of the same model, recipe and samples");
  verb->add_option("--max-ram", options->max_ram,
                   "refuse to start when more memory would be needed, e.g. 8G");
  verb->add_flag("--no-check", options->no_check,
                 "skip loading the artifact back and comparing it with the reference");
  add_quantizer_common(*verb, options->common);
  verb->callback([options] {
    continue_as_quantizer();
    run_quantize(*options);
  });
}

}  // namespace quatrain
