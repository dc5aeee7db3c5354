// quatrain eval: perplexity of models under a named protocol.
#include <fmt/core.h>

#include <memory>

#include "eval/perplexity.h"
#include "model/checkpoint.h"
#include "verb.h"

namespace quatrain {
namespace {

struct EvalOptions {
  CommonOptions common;
  std::vector<std::string> models;
  std::vector<std::string> protocols = {"token-ppl@2048"};
  std::string text = "wikitext2-test";
  int64_t windows = 0;
  ScorerOptions scorer;
};

void evaluate(EvalOptions options) {
  std::vector<Protocol> protocols;
  for (const std::string& name : options.protocols) protocols.push_back(Protocol::parse(name));
  options.scorer.threads = options.common.threads;
  const Corpus corpus = load_corpus(options.text);
  std::vector<PerplexityResult> results;
  for (const std::string& model : options.models) {
    const auto tokenizer = load_model_tokenizer(model);
    const auto scorer = make_scorer(model, options.scorer);
    for (const Protocol& protocol : protocols) {
      results.push_back(perplexity(*scorer, *tokenizer, corpus, protocol, options.windows));
      results.back().model = model;
    }
  }
  if (options.common.json) {
    Json list = Json::array();
    for (const PerplexityResult& result : results) list.push_back(result.to_json());
    print_json({{"results", list}});
    return;
  }
  size_t width = 5;
  for (const PerplexityResult& result : results) width = std::max(width, result.model.size());
  fmt::print("text {}, sha256 {}\n", corpus.name, corpus.sha256);
  fmt::print("{:{}}  {:22} {:>11} {:>9} {:>8} {:>9} {:>10} {:>7}\n", "model", width, "protocol", "perplexity",
             "+-", "windows", "scored", "engine", "tok/s");
  for (const PerplexityResult& result : results)
    fmt::print("{:{}}  {:22} {:>11.4f} {:>9.4f} {:>8} {:>9} {:>10} {:>7.0f}\n", result.model, width,
               result.protocol, result.value, result.error, result.windows, result.tokens, result.engine,
               static_cast<double>(result.windows * result.window) / result.seconds);
}

}  // namespace

void add_eval(CLI::App& app) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* verb = app.add_subcommand("eval", "Measure perplexity under a named protocol");
  verb->footer(
      "Example: quatrain eval model.gguf artifact/ --protocol token-ppl@2048 --text wikitext2-test --windows "
      "8");
  verb->add_option("model", options->models, "16-bit models or artifacts")->required();
  verb->add_option("--protocol", options->protocols,
                   "token-ppl@2048, token-ppl-joined@2048, word-ppl, llama.cpp-ppl@512; several with commas")
      ->delimiter(',')
      ->capture_default_str();
  verb->add_option("--text", options->text, "wikitext2-test, wikitext2-valid, wikitext2-train, or a file")
      ->capture_default_str();
  verb->add_option("--windows", options->windows, "the first N windows only (default: all)")
      ->check(whole_number<int64_t>(1));
  verb->add_option("--engine", options->scorer.engine, "native, or reference (fake quantisation in libtorch)")
      ->check(CLI::IsMember({"native", "reference"}))
      ->capture_default_str();
  add_common(*verb, options->common);
  verb->callback([options] { evaluate(*options); });
}

}  // namespace quatrain
