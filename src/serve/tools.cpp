#include "serve/tools.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "serve/api_error.h"
#include "serve/grammar/json_schema.h"

namespace quatrain {
namespace {

using Node = Grammar::Node;

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";
constexpr size_t kMostTools = 128;

const char* arguments_key(ToolStyle style) {
  return style == ToolStyle::Tagged ? "arguments" : "parameters";
}

// The function of one entry of tools, checked.
const OrderedJson& function_of(const OrderedJson& tool, const std::string& path) {
  if (!tool.is_object() || (tool.contains("type") && tool["type"] != "function"))
    fail_unsupported(path, "{}: only tools of type \"function\" are supported", path);
  const auto function = tool.find("function");
  if (function == tool.end() || !function->is_object() || !function->contains("name") ||
      !(*function)["name"].is_string() || (*function)["name"].get<std::string>().empty())
    fail_field(path, "{}: function.name is missing", path);
  return *function;
}

// The name that tool_choice asks for; empty for any.
std::string chosen_name(const OrderedJson& choice) {
  if (choice.is_string()) return "";
  if (!choice.is_object() || !choice.contains("function") || !choice["function"].is_object() ||
      !choice["function"].contains("name") || !choice["function"]["name"].is_string())
    fail_field("tool_choice", "tool_choice is not \"none\", \"auto\", \"required\" or a function's name");
  return choice["function"]["name"].get<std::string>();
}

// One call from `from`, without its tags.
Node call(JsonGrammar& json, Node from, const ToolPlan& plan) {
  GrammarBuilder& b = json.builder();
  const Node end = b.node();
  for (size_t i = 0; i < plan.names.size(); ++i) {
    const Node name = json.quoted(b.literal(from, "{\"name\": "), plan.names[i]);
    const Node key = b.literal(name, fmt::format(", \"{}\": ", arguments_key(plan.style)));
    const Node arguments =
        schema_rule(json, plan.parameters[i], fmt::format("tools: parameters of \"{}\"", plan.names[i]));
    b.byte(b.call(key, arguments), '}', '}', end);
  }
  return end;
}

// Any text up to and including `tag`, whose prefixes are the nodes (Knuth, Morris, Pratt). The text may end
// anywhere before.
Node text_up_to(GrammarBuilder& b, Node from, std::string_view tag) {
  std::vector<Node> matched;
  for (size_t i = 0; i < tag.size(); ++i) {
    matched.push_back(b.node());
    b.make_final(matched.back());
  }
  matched.push_back(b.node());
  b.epsilon(from, matched[0]);
  const std::set<char> letters(tag.begin(), tag.end());
  for (size_t i = 0; i < tag.size(); ++i)
    for (int byte = 0; byte < 256; ++byte) {
      size_t next = 0;
      if (letters.contains(static_cast<char>(byte))) {
        const std::string read = std::string(tag.substr(0, i)) + static_cast<char>(byte);
        for (next = read.size(); next > 0 && read.substr(read.size() - next) != tag.substr(0, next);) --next;
      }
      b.byte(matched[i], static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), matched[next]);
    }
  return matched.back();
}

std::optional<ToolCall> parse_call(std::string_view text, ToolStyle style) try {
  const OrderedJson json = parse_request_json(text, "call");
  const char* key = arguments_key(style);
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string() || !json.contains(key))
    return std::nullopt;
  return ToolCall{json["name"].get<std::string>(), json[key].dump()};
} catch (const Error&) {
  return std::nullopt;
}

}  // namespace

std::optional<ToolStyle> tool_style(const std::string& chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != std::string::npos; };
  if (!has("tools") || has("<function=")) return std::nullopt;
  if (has(kOpen)) return ToolStyle::Tagged;
  if (has("\"parameters\"") && has("\"name\"")) return ToolStyle::Bare;
  return std::nullopt;
}

std::optional<ToolPlan> read_tools(const RequestFields& fields, const std::string& chat_template) {
  const OrderedJson* tools = fields.find("tools");
  const OrderedJson* choice = fields.find("tool_choice");
  if (tools == nullptr || *tools == OrderedJson::array()) {
    if (choice != nullptr && *choice != "none" && *choice != "auto")
      fail_field("tool_choice", "tool_choice needs tools");
    return std::nullopt;
  }
  if (!tools->is_array() || tools->size() > kMostTools)
    fail_field("tools", "tools is not a list of at most {} tools", kMostTools);
  ToolPlan plan{.tools = *tools, .names = {}, .parameters = {}};
  const std::string wanted = choice == nullptr ? "" : chosen_name(*choice);
  plan.required = !wanted.empty() || (choice != nullptr && *choice == "required");
  if (choice != nullptr && choice->is_string() && *choice != "none" && *choice != "auto" && !plan.required)
    fail_field("tool_choice", "tool_choice is not \"none\", \"auto\", \"required\" or a function's name");
  plan.parallel = fields.boolean("parallel_tool_calls", true);
  for (size_t i = 0; i < tools->size(); ++i) {
    const OrderedJson& function = function_of((*tools)[i], fmt::format("tools[{}]", i));
    const auto name = function["name"].get<std::string>();
    if (!wanted.empty() && name != wanted) continue;
    plan.names.push_back(name);
    const auto parameters = function.find("parameters");
    plan.parameters.push_back(parameters == function.end() || parameters->is_null()
                                  ? OrderedJson{{"type", "object"},
                                                {"properties", OrderedJson::object()},
                                                {"additionalProperties", false}}
                                  : *parameters);
  }
  if (plan.names.empty()) fail_field("tool_choice", "tool_choice: there is no tool \"{}\"", wanted);
  if (choice != nullptr && *choice == "none") return std::nullopt;
  const auto style = tool_style(chat_template);
  if (!style)
    fail_unsupported("tools",
                     "the model's chat template has no tools, or writes calls in a way that this server "
                     "does not know");
  plan.style = *style;
  return plan;
}

Grammar tool_grammar(const ToolPlan& plan) {
  JsonGrammar json;
  GrammarBuilder& b = json.builder();
  const Node start = b.node();
  if (plan.style == ToolStyle::Bare) {
    b.make_final(call(json, start, plan));
    if (!plan.required) {  // anything that does not begin as a call does
      const Node text = b.node();
      b.byte(start, 0, '{' - 1, text);
      b.byte(start, '{' + 1, 255, text);
      b.byte(text, 0, 255, text);
      b.make_final(text);
    }
    return std::move(b).finish(start);
  }
  const Node opened = plan.required ? b.literal(start, kOpen) : text_up_to(b, start, kOpen);
  const Node end =
      b.literal(call(json, b.literal(opened, "\n"), plan), std::string("\n") + std::string(kClose));
  b.make_final(end);
  if (plan.parallel) b.literal(b.literal(end, "\n"), kOpen, opened);
  return std::move(b).finish(start);
}

ToolCallSplitter::Parts ToolCallSplitter::push(std::string_view text) {
  Parts parts;
  held_ += text;
  if (style_ == ToolStyle::Tagged) {
    take_tagged(parts);
  } else if (!held_.empty() && held_[0] != '{') {
    parts.text = std::exchange(held_, {});
  }
  return parts;
}

void ToolCallSplitter::take_tagged(Parts& parts) {
  for (;;) {
    const size_t open = held_.find(kOpen);
    if (open == std::string::npos) {
      // White space before a call belongs to neither, and the end may be the beginning of a tag.
      size_t keep = 0;
      for (size_t size = std::min(kOpen.size() - 1, held_.size()); size > keep; --size)
        if (held_.ends_with(kOpen.substr(0, size))) keep = size;
      size_t end = held_.size() - keep;
      while (end > 0 && (held_[end - 1] == '\n' || held_[end - 1] == ' ')) --end;
      parts.text += held_.substr(0, end);
      held_.erase(0, end);
      return;
    }
    const size_t close = held_.find(kClose, open);
    if (close == std::string::npos) return;
    const auto inside = std::string_view(held_).substr(open + kOpen.size(), close - open - kOpen.size());
    std::string before = held_.substr(0, open);
    before.erase(before.find_last_not_of(" \n") + 1);
    parts.text += before;
    if (const auto call = parse_call(inside, style_))
      parts.calls.push_back(*call);
    else
      parts.text += held_.substr(open, close + kClose.size() - open);
    held_.erase(0, close + kClose.size());
  }
}

ToolCallSplitter::Parts ToolCallSplitter::finish() {
  Parts parts;
  if (style_ == ToolStyle::Bare)
    if (const auto call = parse_call(held_, style_)) {
      parts.calls.push_back(*call);
      held_.clear();
    }
  parts.text = std::exchange(held_, {});
  return parts;
}

}  // namespace quatrain
