#include "text/chat_template.h"

#include <ctime>

#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace quatrain {

struct ChatTemplate::Impl {
  std::string name;
  jinja::Body body;
};

ChatTemplate::ChatTemplate(std::string_view source, std::string_view name)
    : impl_(std::make_unique<Impl>(Impl{std::string(name), jinja::parse_template(source, name)})) {}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const OrderedJson& context, std::optional<std::tm> now) const {
  if (!now) {
    const std::time_t seconds = std::time(nullptr);
    std::tm local{};
    localtime_r(&seconds, &local);
    now = local;
  }
  return jinja::render(impl_->body, impl_->name, context, *now);
}

}  // namespace quatrain
