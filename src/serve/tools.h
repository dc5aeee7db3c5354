// Tool calls: how a model's template wants them written, the grammar that keeps them valid, and the way back
// from text to calls.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/grammar/grammar.h"
#include "serve/request_fields.h"

namespace quatrain {

/// Tagged: <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>, any number, after any text (Hermes,
/// Qwen). Bare: the whole reply is {"name": ..., "parameters": {...}} (Llama 3).
enum class ToolStyle { Tagged, Bare };

/// How a template writes calls; nothing where it has no tools, or in a way that is not known here.
std::optional<ToolStyle> tool_style(const std::string& chat_template);

struct ToolPlan {
  OrderedJson tools;  // for the template
  ToolStyle style = ToolStyle::Tagged;
  bool required = false;                // the reply is a call, and nothing else
  bool parallel = true;                 // several calls
  std::vector<std::string> names;       // that may be called
  std::vector<OrderedJson> parameters;  // a schema each
};

/// From tools, tool_choice and parallel_tool_calls. Nothing without tools, or with tool_choice "none".
std::optional<ToolPlan> read_tools(const RequestFields& fields, const std::string& chat_template);

/// The texts of replies under the plan: calls whose arguments validate, and, unless required, text before.
Grammar tool_grammar(const ToolPlan& plan);

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON
};

/// Splits a reply into text and calls while it comes in.
class ToolCallSplitter {
 public:
  explicit ToolCallSplitter(ToolStyle style) : style_(style) {}

  struct Parts {
    std::string text;
    std::vector<ToolCall> calls;
  };
  Parts push(std::string_view text);
  /// What is left at the end. A call that was cut off is text.
  Parts finish();

 private:
  void take_tagged(Parts& parts);
  ToolStyle style_;
  std::string held_;
};

}  // namespace quatrain
