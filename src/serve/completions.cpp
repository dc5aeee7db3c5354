// /v1/completions: a prompt (text, texts, ids, lists of ids) and its continuation, with echo and logprobs as
// evaluation harnesses want them.
#include <ctime>
#include <utility>

#include "serve/api_error.h"
#include "serve/endpoints.h"
#include "serve/generation_fields.h"
#include "serve/respond.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

struct Prompt {
  std::vector<int32_t> ids;
  std::string text;
};

std::vector<Prompt> read_prompts(const RequestFields& fields, const Service& service) {
  const OrderedJson* value = fields.find("prompt");
  if (value == nullptr) fail_field("prompt", "prompt is missing");
  const Tokenizer& tokenizer = service.tokenizer();
  std::vector<Prompt> prompts;
  const auto add_text = [&](const OrderedJson& text) {
    prompts.push_back({tokenizer.encode_sequence(text.get<std::string>()), text.get<std::string>()});
  };
  const auto add_ids = [&](const OrderedJson& list, const std::string& path) {
    Prompt prompt{RequestFields::ids(list, path), {}};
    service.check_length(prompt.ids.size());
    for (const int32_t id : prompt.ids)
      if (id >= service.engine().config().vocabulary)
        fail_field(path, "{}: token {} is not in the vocabulary of {}", path, id,
                   service.engine().config().vocabulary);
    for (const int32_t id : prompt.ids) prompt.text += token_label(tokenizer, id);
    prompts.push_back(std::move(prompt));
  };
  if (value->is_string()) {
    add_text(*value);
  } else if (value->is_array() && !value->empty() && value->front().is_number()) {
    add_ids(*value, "prompt");
  } else if (value->is_array() && !value->empty()) {
    if (std::ssize(*value) > service.options().choices)
      fail_field("prompt", "prompt holds more than {} prompts", service.options().choices);
    for (size_t i = 0; i < value->size(); ++i) {
      if ((*value)[i].is_string()) {
        add_text((*value)[i]);
      } else {
        add_ids((*value)[i], fmt::format("prompt[{}]", i));
      }
    }
  } else {
    fail_field("prompt",
               "prompt is not a string, a list of strings, a list of token ids or a list of such lists");
  }
  for (const Prompt& prompt : prompts) service.check_length(prompt.ids.size());
  return prompts;
}

int64_t characters(std::string_view text) {
  return std::ranges::count_if(text,
                               [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

/// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}: lists of equal length.
class LogprobLists {
 public:
  LogprobLists(const Tokenizer& tokenizer, bool top) : tokenizer_(tokenizer), top_(top) { clear(); }

  void add(int32_t token, const TokenLogprob* logprob) {
    const std::string label = token_label(tokenizer_, token);
    lists_["tokens"].push_back(label);
    lists_["text_offset"].push_back(offset_);
    offset_ += characters(label);
    lists_["token_logprobs"].push_back(logprob != nullptr ? Json(logprob->logprob) : Json());
    if (!top_ || logprob == nullptr) return lists_["top_logprobs"].push_back(nullptr);
    Json top = Json::object();
    for (const auto& [id, value] : logprob->top) top.emplace(token_label(tokenizer_, id), value);
    lists_["top_logprobs"].push_back(std::move(top));
  }
  /// What was added since the last call.
  Json take() {
    Json taken = std::move(lists_);
    clear();
    return taken;
  }

 private:
  void clear() {
    lists_ = Json::object();
    for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
      lists_[name] = Json::array();
  }

  const Tokenizer& tokenizer_;
  bool top_;
  Json lists_;
  int64_t offset_ = 0;
};

class CompletionFormat : public ReplyFormat {
 public:
  CompletionFormat(const Service& service, std::vector<Prompt> prompts, const GenerationFields& fields,
                   bool echo)
      : prompts_(std::move(prompts)),
        n_(static_cast<size_t>(fields.n)),
        echo_(echo),
        logprobs_(fields.request.top_logprobs >= 0),
        include_usage_(fields.include_usage) {
    head_ = {{"id", new_id("cmpl-")},
             {"object", "text_completion"},
             {"created", std::time(nullptr)},
             {"model", service.options().model_name}};
    for (size_t i = 0; i < prompts_.size() * n_; ++i) {
      choices_.push_back({LogprobLists(service.tokenizer(), fields.request.top_logprobs > 0), {}, {}, 0});
      if (echo && !logprobs_) choices_.back().text = prompts_[i / n_].text;
    }
  }

  std::vector<Json> first_chunks() override {
    std::vector<Json> chunks;
    if (!echo_ || logprobs_) return chunks;
    for (size_t i = 0; i < choices_.size(); ++i)
      chunks.push_back(chunk(i, std::exchange(choices_[i].text, {}), {}));
    return chunks;
  }

  std::vector<Json> chunks(const ReplyEvent& event, const Reply&) override {
    collect(event);
    Choice& choice = choices_[event.choice];
    if (choice.text.empty() && event.logprobs.empty() && choice.finish.empty()) return {};
    return {chunk(event.choice, std::exchange(choice.text, {}), choice.finish)};
  }

  std::vector<Json> last_chunks(const Reply& reply) override {
    if (!include_usage_) return {};
    Json last = head_;
    last["choices"] = Json::array();
    last["usage"] = whole_usage(reply);
    return {std::move(last)};
  }

  void collect(const ReplyEvent& event) override {
    Choice& choice = choices_[event.choice];
    if (event.kind == ReplyEvent::Kind::Prompt) {
      const Prompt& prompt = prompts_[event.choice / n_];
      choice.text += prompt.text;
      choice.lists.add(prompt.ids[0], nullptr);  // nothing comes before it that could predict it
      for (const TokenLogprob& logprob : event.logprobs) choice.lists.add(logprob.token, &logprob);
      return;
    }
    choice.text += event.text;
    if (event.kind == ReplyEvent::Kind::End) {
      choice.finish = finish_reason(event);
      choice.reused = event.reused;
    } else {
      for (const TokenLogprob& logprob : event.logprobs) choice.lists.add(logprob.token, &logprob);
    }
  }

  Json document(const Reply& reply) override {
    Json whole = head_;
    whole["choices"] = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i)
      whole["choices"].push_back(choice_json(i, choices_[i].text, choices_[i].finish));
    whole["usage"] = whole_usage(reply);
    return whole;
  }

 private:
  struct Choice {
    LogprobLists lists;
    std::string text, finish;
    int64_t reused;
  };

  Json choice_json(size_t index, const std::string& text, const std::string& finish) {
    return {{"index", index},
            {"text", text},
            {"logprobs", logprobs_ ? choices_[index].lists.take() : Json()},
            {"finish_reason", finish.empty() ? Json() : Json(finish)}};
  }

  Json chunk(size_t index, const std::string& text, const std::string& finish) {
    Json chunk = head_;
    chunk["choices"] = Json::array({choice_json(index, text, finish)});
    return chunk;
  }

  Json whole_usage(const Reply& reply) const {
    int64_t prompt_tokens = 0, reused = 0;
    for (const Prompt& prompt : prompts_) prompt_tokens += std::ssize(prompt.ids);
    for (size_t i = 0; i < choices_.size(); i += n_) reused += choices_[i].reused;
    return usage(prompt_tokens, reused, reply);
  }

  std::vector<Prompt> prompts_;
  size_t n_;
  bool echo_, logprobs_, include_usage_;
  Json head_;
  std::vector<Choice> choices_;
};

}  // namespace

void completions(Service& service, const OrderedJson& body, httplib::Response& response) {
  const RequestFields fields(body);
  GenerationFields generation = read_generation_fields(fields, service, 16);
  const bool echo = fields.boolean("echo", false);
  generation.request.top_logprobs = fields.integer("logprobs", 0, 20).value_or(-1);
  generation.request.prompt_logprobs = echo && generation.request.top_logprobs >= 0;
  fields.refuse({"tools", "messages"});

  std::vector<Prompt> prompts = read_prompts(fields, service);
  if (std::ssize(prompts) * generation.n > service.options().choices)
    fail_field("n", "{} prompts times n = {} are more than {} choices", prompts.size(), generation.n,
               service.options().choices);
  std::vector<std::vector<int32_t>> ids;
  for (const Prompt& prompt : prompts) ids.push_back(prompt.ids);
  auto format = std::make_unique<CompletionFormat>(service, std::move(prompts), generation, echo);
  auto reply = std::make_unique<Reply>(service.scheduler(), service.metrics(), service.tokenizer(),
                                       multiply(generation, ids), generation.stop, generation.special);
  respond(std::move(reply), std::move(format), generation.stream, response);
}

}  // namespace quatrain
