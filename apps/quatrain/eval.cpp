// quatrain eval: perplexity of models under a named protocol, and their scores in question answering.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error_context.h"
#include "base/file.h"
#include "eval/perplexity.h"
#include "eval/tasks/items.h"
#include "eval/tasks/run_task.h"
#include "model/checkpoint.h"
#include "quantizer_program.h"
#include "verb.h"

namespace quatrain {
namespace {

struct EvalOptions {
  CommonOptions common;
  std::vector<std::string> models;
  std::vector<std::string> protocols;
  std::string text = "wikitext2-test";
  int64_t windows = 0;
  std::vector<std::string> engines = {"native"};
  EngineOptions native;
  std::vector<std::string> tasks;
  std::string data, samples;
  TaskOptions task_options;
};

size_t widest(const std::vector<std::string>& names) {
  size_t width = 5;
  for (const std::string& name : names) width = std::max(width, name.size());
  return width;
}

// Of each result over the first one of its protocol; nothing for that one itself.
std::vector<std::optional<PerplexityRatio>> ratios_of(const std::vector<PerplexityResult>& results) {
  std::vector<std::optional<PerplexityRatio>> ratios(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    size_t first = 0;
    while (results[first].protocol != results[i].protocol) ++first;
    if (first < i) ratios[i] = perplexity_ratio(results[i], results[first]);
  }
  return ratios;
}

void print_perplexities(const EvalOptions& options, const Corpus& corpus,
                        const std::vector<PerplexityResult>& results) {
  const size_t width = widest(options.models);
  fmt::print("text {}, sha256 {}\n", corpus.name, corpus.sha256);
  const auto ratios = ratios_of(results);
  const bool several = std::any_of(ratios.begin(), ratios.end(), [](const auto& r) { return r.has_value(); });
  fmt::print("{:{}}  {:22} {:>11} {:>9} {:>8} {:>9} {:>10} {:>7}{}\n", "model", width, "protocol",
             "perplexity", "+-", "windows", "scored", "engine", "tok/s", several ? "  over the first" : "");
  for (size_t i = 0; i < results.size(); ++i) {
    const PerplexityResult& result = results[i];
    fmt::print("{:{}}  {:22} {:>11.4f} {:>9.4f} {:>8} {:>9} {:>10} {:>7.0f}", result.model, width,
               result.protocol, result.value, result.error, result.windows, result.tokens, result.engine,
               static_cast<double>(result.tokens_run) / result.seconds);
    if (ratios[i]) fmt::print("  {:.4f} +- {:.4f}", ratios[i]->value, ratios[i]->error);
    fmt::print("\n");
  }
}

void print_tasks(const EvalOptions& options, const std::vector<TaskResult>& results) {
  const size_t width = widest(options.models);
  fmt::print("{:{}}  {:15} {:>6} {:>5}  {:20} {:>9} {:>8}\n", "model", width, "task", "items", "shots",
             "metric", "value", "+-");
  for (const TaskResult& result : results)
    for (const auto& [name, estimate] : result.metrics)
      fmt::print("{:{}}  {:15} {:>6} {:>5}  {:20} {:>9.4f} {:>8.4f}\n", result.model, width, result.task,
                 result.items, result.shots, name, estimate.mean, estimate.error);
}

std::string sample_lines(const std::vector<TaskResult>& results) {
  std::string lines;
  for (const TaskResult& result : results) {
    for (size_t i = 0; i < result.samples.size(); ++i) {
      Json sample = result.samples[i];
      sample["model"] = result.model;
      sample["task"] = result.task;
      sample["item"] = i;
      lines += sample.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    }
  }
  return lines;
}

struct Results {
  std::vector<PerplexityResult> perplexities;
  std::vector<TaskResult> tasks;
};

void report(const EvalOptions& options, const Corpus& corpus, const Results& results) {
  if (!options.samples.empty()) write_file(options.samples, sample_lines(results.tasks));
  if (options.common.json) {
    Json list = Json::array();
    const auto ratios = ratios_of(results.perplexities);
    for (size_t i = 0; i < ratios.size(); ++i) {
      Json entry = results.perplexities[i].to_json();
      if (ratios[i]) entry["over_first"] = {{"value", ratios[i]->value}, {"stderr", ratios[i]->error}};
      list.push_back(std::move(entry));
    }
    for (const TaskResult& result : results.tasks) list.push_back(result.to_json());
    print_json({{"results", list}});
    return;
  }
  if (!results.perplexities.empty()) print_perplexities(options, corpus, results.perplexities);
  if (!results.tasks.empty()) print_tasks(options, results.tasks);
}

void evaluate(EvalOptions options) {
  std::vector<Protocol> protocols;
  if (options.protocols.empty() && options.tasks.empty()) options.protocols = {"token-ppl@2048"};
  for (const std::string& name : options.protocols) protocols.push_back(Protocol::parse(name));
  std::vector<Task> tasks;
  for (const std::string& name : options.tasks) tasks.push_back(find_task(name));
  if (!tasks.empty()) {
    if (options.engines != std::vector<std::string>{"native"})
      fail_usage("--task: tasks run in the native engine only");
    options.task_options.data = task_data_directory(options.data);
  }
  options.common.apply_to(options.native);
  for (const std::string& model : options.models)  // before hours are spent on the others
    require(fs::exists(model), "{}: no such model", model);
  Corpus corpus;
  if (!protocols.empty()) corpus = load_corpus(options.text);
  Results results;
  try {
    for (const std::string& model : options.models) {
      const auto tokenizer = load_model_tokenizer(model);
      for (const std::string& engine : options.engines) {
        const auto scorer = make_scorer(model, {engine, options.native});
        for (const Protocol& protocol : protocols) {
          results.perplexities.push_back(in_context(
              model, [&] { return perplexity(*scorer, *tokenizer, corpus, protocol, options.windows); }));
          results.perplexities.back().model = model;
        }
        for (const Task& task : tasks) {
          results.tasks.push_back(in_context(
              model, [&] { return run_task(*scorer->native(), *tokenizer, task, options.task_options); }));
          results.tasks.back().model = model;
        }
      }
    }
  } catch (const Error&) {
    // A later model's failure takes nothing from the earlier ones.
    if (!results.perplexities.empty() || !results.tasks.empty()) report(options, corpus, results);
    throw;
  }
  report(options, corpus, results);
}

}  // namespace

void add_eval(CLI::App& app) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* verb = app.add_subcommand("eval", "Measure perplexity under a named protocol, or score tasks");
  verb->footer(
      "Examples: quatrain eval model.gguf artifact/ --protocol token-ppl@2048 --text wikitext2-test "
      "--windows "
      "8\n          quatrain eval artifact/ --task arc_easy,piqa --data qa/ --limit 100");
  verb->add_option("model", options->models, "16-bit models or artifacts")->required();
  verb->add_option("--protocol", options->protocols,
                   "token-ppl@2048 (the default without --task), token-ppl-joined@2048, word-ppl, "
                   "llama.cpp-ppl@512; several with commas")
      ->delimiter(',');
  verb->add_option("--text", options->text, "wikitext2-test, wikitext2-valid, wikitext2-train, or a file")
      ->capture_default_str();
  verb->add_option("--windows", options->windows, "the first N windows only (default: all)")
      ->check(whole_number<int64_t>(1));
  verb->add_option("--engine", options->engines,
                   "native, or reference (fake quantisation in libtorch); both with a comma")
      ->check(CLI::IsMember({"native", "reference"}))
      ->delimiter(',')
      ->capture_default_str();
  std::string names;
  for (const Task& task : tasks()) names += (names.empty() ? "" : ", ") + task.name;
  verb->add_option("--task,--tasks", options->tasks, names + "; several with commas")->delimiter(',');
  verb->add_option("--data", options->data,
                   "the folder of the tasks' files (default: $QUATRAIN_SHARED/data/qa)");
  verb->add_option("--limit", options->task_options.limit,
                   "the first N items of a task (of each subject of mmlu) only")
      ->check(whole_number<int64_t>(1));
  verb->add_option("--fewshot,--shots", options->task_options.shots,
                   "answered items before each question (default: 5 for gsm8k, else 0)")
      ->check(whole_number<int64_t>(0));
  verb->add_option("--samples", options->samples,
                   "write each item's log-likelihoods or text there, as JSON lines");
  add_engine_common(*verb, options->common);
  verb->callback([options] {
    const auto& engines = options->engines;
    if (std::find(engines.begin(), engines.end(), "reference") != engines.end()) continue_as_quantizer();
    evaluate(*options);
  });
}

}  // namespace quatrain
