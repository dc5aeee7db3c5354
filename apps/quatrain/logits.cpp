// quatrain logits: the logits after every token, as a NumPy array [tokens, vocabulary]. Needs no tokenizer.
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "base/error_context.h"
#include "checkpoint/npy.h"
#include "eval/scorer.h"
#include "quantizer_program.h"
#include "verb.h"

namespace quatrain {
namespace {

struct LogitsOptions {
  CommonOptions common;
  std::string model, ids, output;
  ScorerOptions scorer;
};

void logits(LogitsOptions options) {
  const std::vector<int32_t> ids = parse_ids(options.ids, "--ids");
  options.common.apply_to(options.scorer.native);
  const auto scorer = make_scorer(options.model, options.scorer);
  const int64_t vocabulary = scorer->config().vocabulary;
  for (const int32_t id : ids)
    require(id < vocabulary, "{}: --ids: {} is outside the vocabulary of {}", options.model, id, vocabulary);
  const auto count = static_cast<int64_t>(ids.size());
  std::vector<float> values(static_cast<size_t>(count * vocabulary));
  in_context(options.model, [&] {
    scorer->score(ids, 0, [&](int64_t position, std::span<const float> row) {
      std::copy(row.begin(), row.end(), values.begin() + position * vocabulary);
    });
  });
  write_npy(options.output, {count, vocabulary}, values);
  const std::span<const float> last = std::span(values).last(static_cast<size_t>(vocabulary));
  const auto best = std::max_element(last.begin(), last.end()) - last.begin();
  if (options.common.json) {
    print_json({{"file", options.output}, {"shape", {count, vocabulary}}, {"argmax_last", best}});
  } else {
    fmt::print("{}: logits [{}, {}], greedy next token {}\n", options.output, count, vocabulary, best);
  }
}

}  // namespace

void add_logits(CLI::App& app) {
  auto options = std::make_shared<LogitsOptions>();
  CLI::App* verb = app.add_subcommand("logits", "Write the logits after every token as a NumPy file");
  verb->footer("Example: quatrain logits model.gguf --ids 19556,28,905 -o logits.npy");
  verb->add_option("model", options->model, "16-bit model or artifact")->required();
  verb->add_option("--ids", options->ids, "1,2,3")->required();
  verb->add_option("--engine", options->scorer.engine, "native, or reference (fake quantisation in libtorch)")
      ->check(CLI::IsMember({"native", "reference"}));
  verb->add_option("-o,--output", options->output, "the .npy file")->required();
  add_engine_common(*verb, options->common);
  verb->callback([options] {
    if (options->scorer.engine == "reference") continue_as_quantizer();
    logits(*options);
  });
}

}  // namespace quatrain
