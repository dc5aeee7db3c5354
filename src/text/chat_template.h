// Chat templates: the Jinja text that a model brings, rendered on a conversation.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace quatrain {

/// A parsed template. A construct that the interpreter does not know is an error with its line.
class ChatTemplate {
 public:
  /// `name` begins error texts: "chat_template.jinja:12: ...".
  explicit ChatTemplate(std::string_view source, std::string_view name = "chat template");
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// Renders with the variables of `context` (an object: messages, tools, add_generation_prompt, bos_token,
  /// eos_token, and whatever else the caller sets), as transformers does: trim_blocks, lstrip_blocks, tojson,
  /// strftime_now, raise_exception. A raise_exception() in the template is an Error with its text. `now` is
  /// the time that strftime_now() tells; by default the local time. Safe to call from several threads at
  /// once.
  std::string render(const OrderedJson& context, std::optional<std::tm> now = std::nullopt) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quatrain
