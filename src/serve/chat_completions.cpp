// /v1/chat/completions: a conversation and the model's next message.
#include <ctime>
#include <utility>

#include "serve/api_error.h"
#include "serve/chat_prompt.h"
#include "serve/endpoints.h"
#include "serve/generation_fields.h"
#include "serve/respond.h"
#include "serve/tools.h"

namespace quatrain {
namespace {

Json token_json(const Tokenizer& tokenizer, int32_t token, double logprob) {
  const std::string bytes = token < tokenizer.size() ? tokenizer.token_bytes(token) : std::string();
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
  return {{"token", token_label(tokenizer, token)}, {"logprob", logprob}, {"bytes", std::move(list)}};
}

class ChatFormat : public ReplyFormat {
 public:
  ChatFormat(const Service& service, int64_t prompt_tokens, const GenerationFields& fields,
             const std::optional<ToolPlan>& tools)
      : tokenizer_(service.tokenizer()),
        prompt_tokens_(prompt_tokens),
        logprobs_(fields.request.top_logprobs >= 0),
        include_usage_(fields.include_usage),
        choices_(static_cast<size_t>(fields.n)) {
    if (tools)
      for (Choice& choice : choices_) choice.splitter.emplace(tools->style);
    head_ = {{"id", new_id("chatcmpl-")},
             {"object", fields.stream ? "chat.completion.chunk" : "chat.completion"},
             {"created", std::time(nullptr)},
             {"model", service.options().model_name}};
  }

  std::vector<Json> first_chunks() override {
    std::vector<Json> chunks;
    for (size_t i = 0; i < choices_.size(); ++i)
      chunks.push_back(chunk(i, {{"role", "assistant"}, {"content", ""}}, Json(), Json()));
    return chunks;
  }

  std::vector<Json> chunks(const ReplyEvent& event, const Reply&) override {
    collect(event);
    Choice& choice = choices_[event.choice];
    std::vector<Json> chunks;
    if (!choice.text.empty() || !choice.logprobs.empty())
      chunks.push_back(
          chunk(event.choice, {{"content", std::exchange(choice.text, {})}}, take_logprobs(choice), Json()));
    for (const Json& call : std::exchange(choice.calls, {}))
      chunks.push_back(chunk(event.choice, {{"tool_calls", Json::array({call})}}, Json(), Json()));
    if (event.kind == ReplyEvent::Kind::End)
      chunks.push_back(chunk(event.choice, Json::object(), Json(), choice.finish));
    return chunks;
  }

  std::vector<Json> last_chunks(const Reply& reply) override {
    if (!include_usage_) return {};
    Json last = head_;
    last["choices"] = Json::array();
    last["usage"] = usage(prompt_tokens_, reused_, reply);
    return {std::move(last)};
  }

  void collect(const ReplyEvent& event) override {
    Choice& choice = choices_[event.choice];
    if (choice.splitter) {
      add(choice, choice.splitter->push(event.text));
    } else {
      choice.text += event.text;
    }
    if (event.kind == ReplyEvent::Kind::End) {
      if (choice.splitter) add(choice, choice.splitter->finish());
      choice.finish = finish_reason(event);
      if (choice.called > 0 && choice.finish == "stop") choice.finish = "tool_calls";
      if (event.choice == 0) reused_ = event.reused;
    } else if (!event.stop_token) {
      for (const TokenLogprob& logprob : event.logprobs) choice.logprobs.push_back(logprob_json(logprob));
    }
  }

  Json document(const Reply& reply) override {
    Json whole = head_;
    whole["choices"] = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      Choice& choice = choices_[i];
      Json message = {{"role", "assistant"}, {"content", choice.text}};
      if (!choice.calls.empty()) {
        message["tool_calls"] = choice.calls;
        if (choice.text.empty()) message["content"] = nullptr;
      }
      whole["choices"].push_back({{"index", i},
                                  {"message", std::move(message)},
                                  {"logprobs", take_logprobs(choice)},
                                  {"finish_reason", choice.finish}});
    }
    whole["usage"] = usage(prompt_tokens_, reused_, reply);
    return whole;
  }

 private:
  struct Choice {
    std::string text, finish;
    std::vector<Json> logprobs;
    std::optional<ToolCallSplitter> splitter;
    std::vector<Json> calls;
    int called = 0;
  };

  static void add(Choice& choice, ToolCallSplitter::Parts parts) {
    choice.text += parts.text;
    for (const ToolCall& call : parts.calls)
      choice.calls.push_back({{"index", choice.called++},
                              {"id", new_id("call_")},
                              {"type", "function"},
                              {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }

  Json logprob_json(const TokenLogprob& logprob) const {
    Json json = token_json(tokenizer_, logprob.token, logprob.logprob);
    json["top_logprobs"] = Json::array();
    for (const auto& [token, value] : logprob.top)
      json["top_logprobs"].push_back(token_json(tokenizer_, token, value));
    return json;
  }

  Json take_logprobs(Choice& choice) const {
    if (!logprobs_) return nullptr;
    return {{"content", std::exchange(choice.logprobs, {})}};
  }

  Json chunk(size_t index, Json delta, Json logprobs, const Json& finish) const {
    Json chunk = head_;
    chunk["choices"] = Json::array({{{"index", index},
                                     {"delta", std::move(delta)},
                                     {"logprobs", std::move(logprobs)},
                                     {"finish_reason", finish}}});
    return chunk;
  }

  const Tokenizer& tokenizer_;
  int64_t prompt_tokens_, reused_ = 0;
  bool logprobs_, include_usage_;
  Json head_;
  std::vector<Choice> choices_;
};

std::shared_ptr<MaskedGrammar> grammar_of(const ToolPlan& plan, Service& service) {
  std::string key = fmt::format("tools {} {} {}", static_cast<int>(plan.style), plan.required, plan.parallel);
  for (size_t i = 0; i < plan.names.size(); ++i)
    key += " " + OrderedJson(plan.names[i]).dump() + " " + plan.parameters[i].dump();
  try {
    return service.grammars().get(key, [&] { return tool_grammar(plan); });
  } catch (const Error& error) {
    fail_field("tools", "{}", error.what());
  }
}

}  // namespace

void chat_completions(Service& service, const OrderedJson& body, httplib::Response& response) {
  const RequestFields fields(body);
  GenerationFields generation = read_generation_fields(fields, service, service.scheduler().context());
  fields.refuse({"echo", "prompt"});
  const int64_t top = fields.integer("top_logprobs", 0, 20).value_or(0);
  if (fields.boolean("logprobs", false)) {
    generation.request.top_logprobs = top;
  } else if (top > 0) {
    fail_field("top_logprobs", "top_logprobs needs logprobs = true");
  }
  const std::optional<ToolPlan> tools = read_tools(fields, service.chat_template_source());
  if (tools) {
    if (generation.grammar)
      fail_unsupported("response_format", "response_format beside tools is not supported");
    generation.grammar = grammar_of(*tools, service);
  }
  const std::vector<int32_t> prompt = chat_prompt(fields, service, tools ? tools->tools : OrderedJson());
  auto format = std::make_unique<ChatFormat>(service, std::ssize(prompt), generation, tools);
  auto reply = std::make_unique<Reply>(service.scheduler(), service.metrics(), service.tokenizer(),
                                       multiply(generation, {prompt}), generation.stop, generation.special);
  respond(std::move(reply), std::move(format), generation.stream, response);
}

}  // namespace quatrain
