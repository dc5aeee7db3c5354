// /tokenize, /detokenize and /tokenizer_info.
#include "serve/api_error.h"
#include "serve/chat_prompt.h"
#include "serve/endpoints.h"

namespace quatrain {

void tokenize(Service& service, const OrderedJson& body, httplib::Response& response) {
  const RequestFields fields(body);
  service.check_model(fields);
  std::vector<int32_t> ids;
  if (fields.has("messages")) {
    ids = service.tokenizer().encode(render_chat(fields, service, nullptr), true);
  } else {
    const auto text = fields.text("prompt");
    if (!text) fail_field("prompt", "prompt is missing: give prompt or messages");
    ids = fields.boolean("add_special_tokens", true) ? service.tokenizer().encode_sequence(*text)
                                                     : service.tokenizer().encode(*text);
  }
  const Json answer = {
      {"tokens", ids}, {"count", ids.size()}, {"max_model_len", service.scheduler().context()}};
  response.set_content(dump_json(answer), "application/json");
}

void detokenize(Service& service, const OrderedJson& body, httplib::Response& response) {
  const RequestFields fields(body);
  service.check_model(fields);
  const OrderedJson* list = fields.find("tokens");
  if (list == nullptr) fail_field("tokens", "tokens is missing");
  const std::vector<int32_t> ids = RequestFields::ids(*list, "tokens");
  for (const int32_t id : ids)
    if (id >= service.tokenizer().size())
      fail_field("tokens", "tokens: {} is not in the vocabulary of {}", id, service.tokenizer().size());
  const Json answer = {{"prompt", service.tokenizer().decode(ids, true)}};
  response.set_content(dump_json(answer), "application/json");
}

void tokenizer_info(Service& service, httplib::Response& response) {
  const Tokenizer& tokenizer = service.tokenizer();
  const auto name = [&](int32_t id) { return id < 0 ? Json() : Json(tokenizer.token_text(id)); };
  const Json answer = {
      {"bos_token", name(tokenizer.bos())},
      {"eos_token", name(tokenizer.eos().empty() ? -1 : tokenizer.eos().front())},
      {"chat_template", service.chat_template() == nullptr ? Json() : Json(service.chat_template_source())}};
  response.set_content(dump_json(answer), "application/json");
}

}  // namespace quatrain
