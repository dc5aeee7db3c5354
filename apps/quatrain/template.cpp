// quatrain template: the prompt that a model's chat template makes of a conversation.
#include <fmt/core.h>

#include <memory>

#include "base/error_context.h"
#include "model/checkpoint.h"
#include "text/chat_template.h"
#include "text/conversation.h"
#include "verb.h"

namespace quatrain {
namespace {

struct TemplateOptions {
  CommonOptions common;
  std::string model, messages, tools;
  bool generation_prompt = false;
};

void render(const TemplateOptions& options) {
  const auto tokenizer = load_model_tokenizer(options.model);
  require(!tokenizer->chat_template().empty(), "{}: the model brings no chat template", options.model);
  OrderedJson messages = parse_ordered_json(read_file(options.messages), options.messages);
  OrderedJson tools;
  if (!options.tools.empty()) tools = parse_ordered_json(read_file(options.tools), options.tools);
  const std::string prompt = in_context(options.model, [&] {
    return ChatTemplate(tokenizer->chat_template())
        .render(chat_context(*tokenizer, std::move(messages), std::move(tools), options.generation_prompt));
  });
  if (options.common.json) {
    print_json({{"prompt", prompt}, {"ids", tokenizer->encode(prompt, true)}});
  } else {
    fmt::print("{}", prompt);
  }
}

}  // namespace

void add_template(CLI::App& app) {
  auto options = std::make_shared<TemplateOptions>();
  CLI::App* verb = app.add_subcommand("template", "Print the prompt that the model's chat template makes");
  verb->footer("Example: quatrain template model.gguf --messages messages.json --generation-prompt");
  verb->add_option("model", options->model, "directory or GGUF file")->required();
  verb->add_option("--messages", options->messages, "JSON: [{\"role\": \"user\", \"content\": \"Hi\"}, ...]")
      ->required();
  verb->add_option("--tools", options->tools, "JSON: a list of tool descriptions");
  verb->add_flag("--generation-prompt", options->generation_prompt,
                 "end with the beginning of the model's reply");
  add_common(*verb, options->common);
  verb->callback([options] { render(*options); });
}

}  // namespace quatrain
