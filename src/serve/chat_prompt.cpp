#include "serve/chat_prompt.h"

#include "serve/api_error.h"
#include "text/conversation.h"

namespace quatrain {
namespace {

constexpr size_t kMostMessages = 4096;

// Templates expect a text; clients may send its parts.
void join_text_parts(OrderedJson& message, const std::string& path) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_array()) return;
  std::string text;
  for (const OrderedJson& part : *content) {
    const std::string type = part.is_object() && part.contains("type") && part["type"].is_string()
                                 ? part["type"].get<std::string>()
                                 : "";
    if (type != "text")
      fail_unsupported(path + ".content", "{}.content: parts of type \"{}\" are not supported, only text",
                       path, type);
    if (!part.contains("text") || !part["text"].is_string())
      fail_field(path + ".content", "{}.content: a text part has no text", path);
    text += part["text"].get<std::string>();
  }
  *content = text;
}

// The API carries arguments as JSON text, templates print them as the object that they are. Text that is none
// (a reply that was cut off) stays as it is.
void parse_arguments(OrderedJson& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return;
  for (OrderedJson& call : *calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    OrderedJson& function = call["function"];
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    try {
      OrderedJson arguments = parse_request_json(function["arguments"].get<std::string>(), "arguments");
      if (arguments.is_object()) function["arguments"] = std::move(arguments);
    } catch (const Error&) {
    }
  }
}

OrderedJson read_messages(const RequestFields& fields) {
  const OrderedJson* value = fields.find("messages");
  if (value == nullptr) fail_field("messages", "messages is missing");
  if (!value->is_array() || value->empty() || value->size() > kMostMessages)
    fail_field("messages", "messages is not a list of 1 to {} messages", kMostMessages);
  OrderedJson messages = *value;
  for (size_t i = 0; i < messages.size(); ++i) {
    OrderedJson& message = messages[i];
    const std::string path = fmt::format("messages[{}]", i);
    if (!message.is_object()) fail_field(path, "{} is not an object", path);
    join_text_parts(message, path);
    parse_arguments(message);
    if (message.contains("role") && message["role"] == "developer") message["role"] = "system";
  }
  return messages;
}

}  // namespace

std::string render_chat(const RequestFields& fields, const Service& service, const OrderedJson& tools) {
  if (service.chat_template() == nullptr)
    fail_unsupported("messages",
                     "the model brings no chat template; use /v1/completions, or start the server "
                     "with --chat-template FILE");
  OrderedJson messages = read_messages(fields);
  try {
    OrderedJson context = chat_context(service.tokenizer(), std::move(messages), tools, true);
    if (const OrderedJson* more = fields.find("chat_template_kwargs")) {
      if (!more->is_object()) fail_field("chat_template_kwargs", "chat_template_kwargs is not an object");
      for (const auto& [key, value] : more->items())
        if (!context.contains(key)) context[key] = value;
    }
    return service.chat_template()->render(context);
  } catch (const ApiError&) {
    throw;
  } catch (const Error& error) {
    fail_field("messages", "{}", error.what());
  }
}

std::vector<int32_t> chat_prompt(const RequestFields& fields, const Service& service,
                                 const OrderedJson& tools) {
  std::vector<int32_t> ids = service.tokenizer().encode(render_chat(fields, service, tools), true);
  service.check_length(ids.size());
  return ids;
}

}  // namespace quatrain
