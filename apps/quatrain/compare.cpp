// quatrain compare: recipes side by side in one table and one page.
#include "eval/compare.h"

#include <fmt/core.h>

#include <memory>

#include "base/error.h"
#include "eval/tasks/items.h"
#include "quantizer_program.h"
#include "verb.h"
#include "wide_products.h"

namespace quatrain {
namespace {

struct CompareVerbOptions {
  CommonOptions common;
  CompareOptions compare;
  std::string model, output, data, max_ram;
  std::vector<std::string> protocols = {"token-ppl@2048"};
  bool no_jump_ratio = false;
};

void run_compare(CompareVerbOptions options) {
  restart_with_wide_products();
  CompareOptions& settings = options.compare;
  settings.model = options.model;
  for (const std::string& name : options.protocols) settings.protocols.push_back(Protocol::parse(name));
  for (const std::string& name : settings.tasks) find_task(name);
  if (!settings.tasks.empty()) settings.task_options.data = task_data_directory(options.data);
  settings.threads = options.common.threads;
  settings.device = options.common.device;
  settings.jump_ratio = !options.no_jump_ratio;
  if (!options.max_ram.empty()) settings.max_ram = parse_bytes(options.max_ram, "--max-ram");
  settings.program = QUATRAIN_VERSION;
  const Comparison comparison = compare(settings, options.output);
  write_comparison(comparison, options.output);
  if (options.common.json)
    print_json(comparison.to_json());
  else
    fmt::print("{}report: {}\n", comparison.to_text(), (fs::path(options.output) / "report.html").string());
  require(comparison.failures.empty(), "compare: {} of {} recipes failed, {} for one: {}",
          comparison.failures.size(), settings.recipes.size(), comparison.failures.front().first,
          comparison.failures.front().second);
}

}  // namespace

void add_compare(CLI::App& app) {
  auto options = std::make_shared<CompareVerbOptions>();
  options->compare.texts = {"wikitext2-test"};
  CLI::App* verb =
      app.add_subcommand("compare", "Quantise by several recipes and put the results side by side");
  verb->footer(
      "Example: quatrain compare model.gguf --recipes rtn-g64,quarot,quatrain --windows 8 --tasks arc_easy "
      "-o "
      "comparison");
  verb->add_option("model", options->model, "16-bit hub directory, GGUF or llama2.c file")->required();
  verb->add_option("--recipes", options->compare.recipes,
                   "shipped recipes, recipe files or artifacts; several with commas")
      ->delimiter(',')
      ->required();
  verb->add_option("--protocol", options->protocols, "perplexity protocols, as of eval; several with commas")
      ->delimiter(',')
      ->capture_default_str();
  verb->add_option("--text", options->compare.texts, "a text of eval; may be given several times")
      ->delimiter(',')
      ->capture_default_str();
  verb->add_option("--windows", options->compare.windows,
                   "the first N windows of each text only (default: all)")
      ->check(whole_number<int64_t>(1));
  verb->add_option("--tasks,--task", options->compare.tasks, "tasks of eval; several with commas")
      ->delimiter(',');
  verb->add_option("--data", options->data,
                   "the folder of the tasks' files (default: $QUATRAIN_SHARED/data/qa)");
  verb->add_option("--limit", options->compare.task_options.limit, "the first N items of a task only")
      ->check(whole_number<int64_t>(1));
  verb->add_option("--fewshot,--shots", options->compare.task_options.shots,
                   "answered items before each question")
      ->check(whole_number<int64_t>(0));
  verb->add_flag("--no-jump-ratio", options->no_jump_ratio, "leave DynamicPTQ's curves out of the report");
  verb->add_option("--max-ram", options->max_ram,
                   "refuse to quantise where more memory would be needed, e.g. 8G");
  verb->add_option("-o,--output", options->output,
                   "the folder of artifacts, rows and report; a run goes on there")
      ->required();
  add_quantizer_common(*verb, options->common);
  verb->callback([options] {
    continue_as_quantizer();
    run_compare(*options);
  });
}

}  // namespace quatrain
