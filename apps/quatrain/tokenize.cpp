// quatrain tokenize, quatrain detokenize: text to ids and back with a model's own tokenizer.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "model/checkpoint.h"
#include "verb.h"

namespace quatrain {
namespace {

struct TokenizeOptions {
  CommonOptions common;
  std::string model, text, file;
  bool special = false;
};

void tokenize(const TokenizeOptions& options) {
  const auto tokenizer = load_model_tokenizer(options.model);
  const std::string text = options.file.empty() ? options.text : read_file(options.file);
  const std::vector<int32_t> ids =
      options.special ? tokenizer->encode_sequence(text, true) : tokenizer->encode(text, false);
  if (options.common.json) {
    print_json({{"ids", ids}});
  } else {
    fmt::print("{}\n", fmt::join(ids, ","));
  }
}

struct DetokenizeOptions {
  CommonOptions common;
  std::string model, ids;
  bool special = false;
};

void detokenize(const DetokenizeOptions& options) {
  const std::vector<int32_t> ids = parse_ids(options.ids, "--ids");
  const auto tokenizer = load_model_tokenizer(options.model);
  for (const int32_t id : ids)
    require(id < tokenizer->size(), "{}: --ids: {} is outside the vocabulary of {}", options.model, id,
            tokenizer->size());
  const std::string text = tokenizer->decode(ids, options.special);
  if (options.common.json) {
    print_json({{"text", text}});
  } else {
    fmt::print("{}\n", text);
  }
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* verb = app.add_subcommand("tokenize", "Print the token ids of a text");
  verb->footer("Example: quatrain tokenize model.gguf --text \"Hello, world!\"");
  verb->add_option("model", options->model, "directory, GGUF (vocabulary-only ones too) or llama2.c file")
      ->required();
  auto* text = verb->add_option("--text", options->text, "the text");
  auto* file =
      verb->add_option("--file", options->file, "a file with the text (.gz is unpacked)")->excludes(text);
  verb->add_flag("--special", options->special,
                 "special tokens in the text become their ids; BOS and EOS are added");
  add_common(*verb, options->common);
  verb->callback([options, text, file] {
    if (text->count() + file->count() == 0) fail_usage("tokenize: give --text or --file");
    tokenize(*options);
  });
}

void add_detokenize(CLI::App& app) {
  auto options = std::make_shared<DetokenizeOptions>();
  CLI::App* verb = app.add_subcommand("detokenize", "Print the text of token ids");
  verb->footer("Example: quatrain detokenize model.gguf --ids 19556,28,905");
  verb->add_option("model", options->model, "directory, GGUF or llama2.c file")->required();
  verb->add_option("--ids", options->ids, "1,2,3")->required();
  verb->add_flag("--special", options->special, "print special tokens too");
  add_common(*verb, options->common);
  verb->callback([options] { detokenize(*options); });
}

}  // namespace quatrain
