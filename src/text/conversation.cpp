#include "text/conversation.h"

#include <utility>

namespace quatrain {
namespace {

void check_part(const OrderedJson& part, const std::string& where) {
  require(part.is_object(), "{} must be an object, not {}", where, part.type_name());
  const auto type = part.find("type");
  require(type != part.end() && type->is_string(), "{}.type must be a string such as \"text\"", where);
  if (*type != "text") return;
  const auto text = part.find("text");
  require(text != part.end() && text->is_string(), "{}.text must be a string", where);
}

void check_content(const OrderedJson& content, const std::string& where) {
  if (content.is_string() || content.is_null()) return;
  require(content.is_array(), "{} must be a string, null or an array of parts, not {}", where,
          content.type_name());
  for (size_t i = 0; i < content.size(); ++i) check_part(content[i], fmt::format("{}[{}]", where, i));
}

void check_objects(const OrderedJson& list, const std::string& where) {
  require(list.is_array(), "{} must be an array, not {}", where, list.type_name());
  for (size_t i = 0; i < list.size(); ++i)
    require(list[i].is_object(), "{}[{}] must be an object, not {}", where, i, list[i].type_name());
}

void check_message(const OrderedJson& message, const std::string& where) {
  const auto role = message.find("role");
  require(role != message.end() && role->is_string(), "{}.role must be a string such as \"user\"", where);
  const auto calls = message.find("tool_calls");
  const bool has_calls = calls != message.end() && !calls->is_null();
  if (has_calls) check_objects(*calls, where + ".tool_calls");
  const auto content = message.find("content");
  require(content != message.end() || has_calls, "{}.content is missing", where);
  if (content != message.end()) check_content(*content, where + ".content");
}

}  // namespace

OrderedJson chat_context(const Tokenizer& tokenizer, OrderedJson messages, OrderedJson tools,
                         bool add_generation_prompt) {
  check_objects(messages, "messages");
  for (size_t i = 0; i < messages.size(); ++i) check_message(messages[i], fmt::format("messages[{}]", i));
  if (!tools.is_null()) check_objects(tools, "tools");
  if (tools.empty()) tools = nullptr;

  OrderedJson context;
  context["messages"] = std::move(messages);
  context["tools"] = std::move(tools);
  context["documents"] = nullptr;
  context["add_generation_prompt"] = add_generation_prompt;
  if (tokenizer.bos() >= 0) context["bos_token"] = tokenizer.token_text(tokenizer.bos());
  if (!tokenizer.eos().empty()) context["eos_token"] = tokenizer.token_text(tokenizer.eos().front());
  return context;
}

}  // namespace quatrain
