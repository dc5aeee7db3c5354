// quatrain run: one answer (-p), or a chat in the terminal with the model's own template.
#include <fmt/core.h>

#include <csignal>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "base/error_context.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "line_reader.h"
#include "model/checkpoint.h"
#include "text/chat_template.h"
#include "text/conversation.h"
#include "verb.h"

namespace quatrain {
namespace {

struct RunOptions {
  CommonOptions common;
  std::string model, system;
  std::optional<std::string> prompt;
  bool raw = false;
  EngineOptions engine;
  GenerateOptions generate;
};

std::string_view name_of(Generation::Finish finish) {
  switch (finish) {
    case Generation::Finish::Stop:
      return "stop";
    case Generation::Finish::Length:
      return "length";
    case Generation::Finish::Context:
      return "context";
    case Generation::Finish::Cancelled:
      return "cancelled";
  }
  return "";
}

double rate(size_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

/// A model and its conversation. The KV cache keeps what successive prompts have in common.
class Chat {
 public:
  explicit Chat(const RunOptions& options)
      : options_(options),
        tokenizer_(load_model_tokenizer(options.model)),
        engine_(Engine::load(options.model, options.engine)),
        sequence_(engine_->new_sequence()) {
    if (!options_.raw && !tokenizer_->chat_template().empty())
      in_context(options_.model, [&] { template_.emplace(tokenizer_->chat_template()); });
    if (!options_.raw && !template_)
      log_note("the model brings no chat template: the text is continued as it stands");
    options_.generate.stop_ids = tokenizer_->eos();
    clear();
  }

  void clear() {
    messages_ = OrderedJson::array();
    if (!options_.system.empty()) messages_.push_back({{"role", "system"}, {"content", options_.system}});
  }

  Generation ask(const std::string& text, const std::function<bool(std::string_view)>& on_text) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    try {
      Generation reply = in_context(options_.model, [&] { return answer(prompt_ids(text), on_text); });
      messages_.push_back({{"role", "assistant"}, {"content", reply.text}});
      return reply;
    } catch (...) {
      messages_.erase(messages_.size() - 1);  // nothing was answered: the next question replaces this one
      throw;
    }
  }

  const Engine& engine() const { return *engine_; }

 private:
  static void log_note(const std::string& text) { print_note("note: {}\n", text); }

  Generation answer(const std::vector<int32_t>& prompt,
                    const std::function<bool(std::string_view)>& on_text) {
    if (std::cmp_greater(prompt.size(), engine_->context()))
      fail("the conversation has {} tokens, the context holds {}; {}", prompt.size(), engine_->context(),
           "shorten it, or begin anew (in a chat: /clear)");
    const auto shared =
        static_cast<size_t>(engine_->reusable(sequence_, static_cast<int64_t>(shared_prefix(prompt))));
    engine_->truncate(sequence_, static_cast<int64_t>(shared));
    cached_.resize(shared);
    Generation reply = generate(*engine_, *tokenizer_, sequence_, std::span(prompt).subspan(shared),
                                options_.generate, on_text);
    cached_ = prompt;
    cached_.insert(cached_.end(), reply.tokens.begin(), reply.tokens.end());
    cached_.resize(static_cast<size_t>(engine_->length(sequence_)));
    return reply;
  }

  std::vector<int32_t> prompt_ids(const std::string& text) const {
    if (!template_) return tokenizer_->encode_sequence(text);
    return tokenizer_->encode(template_->render(chat_context(*tokenizer_, messages_, nullptr, true)), true);
  }

  // At least the last token of a prompt runs again: its logits begin the reply.
  size_t shared_prefix(const std::vector<int32_t>& prompt) const {
    size_t shared = 0;
    while (shared < cached_.size() && shared + 1 < prompt.size() && cached_[shared] == prompt[shared])
      ++shared;
    return shared;
  }

  RunOptions options_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
  std::optional<ChatTemplate> template_;
  int64_t sequence_;
  OrderedJson messages_;
  std::vector<int32_t> cached_;  // the tokens that the sequence's cache holds
};

void print_speed(const Generation& reply) {
  print_note("[{} + {} tokens, prefill {:.0f} tok/s, decode {:.1f} tok/s, {}]\n", reply.prompt_tokens,
             reply.tokens.size(), rate(static_cast<size_t>(reply.prompt_tokens), reply.prefill_seconds),
             rate(reply.tokens.size(), reply.decode_seconds), name_of(reply.finish));
}

// Ctrl-C during a chat in a terminal: once ends the reply, twice the program (a long prompt may be running).
class Interrupts {
 public:
  Interrupts() {
    struct sigaction action {};
    action.sa_handler = [](int) {
      if (interrupted_ != 0) {
        std::signal(SIGINT, SIG_DFL);
        std::raise(SIGINT);
      }
      interrupted_ = 1;
    };
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, nullptr);
  }

  static void forget() { interrupted_ = 0; }
  static bool any() { return interrupted_ != 0; }

 private:
  static inline volatile std::sig_atomic_t interrupted_ = 0;
};

bool print_piece(std::string_view text) {
  std::cout << text << std::flush;
  return std::cout && !Interrupts::any();
}

void say(Chat& chat, const std::string& text) {
  const Generation reply = chat.ask(text, print_piece);
  std::cout << std::endl;
  require(static_cast<bool>(std::cout), "the answer cannot be written");
  print_speed(reply);
}

void answer_once(Chat& chat, const RunOptions& options) {
  if (!options.common.json) {
    say(chat, *options.prompt);
    return;
  }
  const Generation reply = chat.ask(*options.prompt, nullptr);
  print_json({{"text", reply.text},
              {"tokens", reply.tokens},
              {"finish", name_of(reply.finish)},
              {"prompt_tokens", reply.prompt_tokens},
              {"prefill_tok_s", rate(static_cast<size_t>(reply.prompt_tokens), reply.prefill_seconds)},
              {"decode_tok_s", rate(reply.tokens.size(), reply.decode_seconds)}});
}

// A line that cannot be answered, such as one too long, does not end the chat.
void answer(Chat& chat, const std::string& line) {
  Interrupts::forget();
  try {
    say(chat, line);
  } catch (const Error& error) {
    if (!std::cout) throw;
    print_note("error: {}\n", error.what());
  }
}

void converse(Chat& chat) {
  LineReader lines;
  std::optional<Interrupts> interrupts;
  if (lines.on_terminal()) interrupts.emplace();
  if (lines.on_terminal())
    print_note("context of {} tokens, {} threads; /help lists the commands\n", chat.engine().context(),
               chat.engine().threads());
  while (const std::optional<std::string> line = lines.read()) {
    const size_t first = line->find_first_not_of(" \t\r");
    if (first == std::string::npos) continue;
    const std::string word = line->substr(first, line->find_last_not_of(" \t\r") + 1 - first);
    if (word == "/quit" || word == "/exit") return;
    if (word == "/help") {
      print_note(
          "/clear  forget the conversation\n/help   this list\n/quit   leave (or end of input, "
          "Ctrl-D)\nCtrl-C  drop the line; end the reply\n");
    } else if (word == "/clear") {
      chat.clear();
    } else if (word.front() == '/') {
      print_note("{}: no such command; /help lists them\n", word);
    } else {
      answer(chat, *line);
    }
  }
}

// A value that the sampler refuses is a wrong flag.
void check_sampling(const SamplerOptions& sampling) {
  try {
    sampling.validate();
  } catch (const Error& error) {
    fail_usage("run: {}", error.what());
  }
}

}  // namespace

void add_run(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* verb = app.add_subcommand("run", "Chat with a model, or answer one prompt");
  verb->footer("Example: quatrain run artifact -p \"What is a quatrain?\" --max-tokens 100");
  verb->add_option("model", options->model, "16-bit model or artifact")->required();
  verb->add_option("-p,--prompt", options->prompt, "answer this once and leave");
  verb->add_flag("--raw", options->raw, "continue the text as it stands, without the chat template");
  verb->add_option("--system", options->system, "the system message");
  verb->add_option("--max-tokens", options->generate.max_tokens, "longest reply")
      ->check(whole_number<int64_t>(1))
      ->capture_default_str();
  verb->add_option("--stop", options->generate.stop, "a text that ends the reply (repeatable)")
      ->check(
          [](const std::string& text) { return std::string(text.empty() ? "a stop text is empty" : ""); });
  verb->add_option("--context", options->engine.context,
                   "longest conversation in tokens (default: the model's limit)")
      ->check(whole_number<int64_t>(1));
  SamplerOptions& sampling = options->generate.sampling;
  verb->add_option("--temperature", sampling.temperature, "0 is greedy")->capture_default_str();
  verb->add_option("--top-k", sampling.top_k, "0 is all")
      ->check(whole_number<int32_t>(0))
      ->capture_default_str();
  verb->add_option("--top-p", sampling.top_p)->capture_default_str();
  verb->add_option("--min-p", sampling.min_p)->capture_default_str();
  verb->add_option("--repetition-penalty", sampling.repetition_penalty)->capture_default_str();
  verb->add_option("--seed", sampling.seed)->check(whole_number<uint64_t>(0))->capture_default_str();
  add_engine_common(*verb, options->common);
  verb->callback([options] {
    check_sampling(options->generate.sampling);
    options->common.apply_to(options->engine);
    if (options->common.json && !options->prompt) fail_usage("run: --json needs a prompt (-p)");
    Chat chat(*options);
    if (options->prompt) {
      answer_once(chat, *options);
    } else {
      converse(chat);
    }
  });
}

}  // namespace quatrain
