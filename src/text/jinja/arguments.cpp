#include "text/jinja/arguments.h"

namespace quatrain::jinja {

void bind_into(std::string_view function, const Arguments& arguments, const std::string_view* names,
               std::optional<Value>* slots, size_t count) {
  require(arguments.positional.size() <= count, "{}() takes at most {} arguments, got {}", function, count,
          arguments.positional.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) slots[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    size_t slot = 0;
    while (slot < count && names[slot] != name) ++slot;
    require(slot < count, "{}() has no argument '{}'", function, name);
    require(!slots[slot], "{}() got argument '{}' twice", function, name);
    slots[slot] = value;
  }
}

void expect_no_arguments(std::string_view function, const Arguments& arguments) {
  require(arguments.positional.empty() && arguments.named.empty(), "{}() takes no arguments", function);
}

const Value& required(std::string_view function, std::string_view name, const std::optional<Value>& slot) {
  require(slot.has_value(), "{}() needs the argument '{}'", function, name);
  return *slot;
}

const std::string& text_argument(std::string_view function, std::string_view name, const Value& value) {
  require_defined(value);
  require(value.text() != nullptr, "{}(): argument '{}' must be a string, not {}", function, name,
          type_name(value));
  return value.text()->bytes;
}

int64_t integer_argument(std::string_view function, std::string_view name, const Value& value) {
  require_defined(value);
  const auto integer = as_integer(value);
  require(integer.has_value(), "{}(): argument '{}' must be an integer, not {}", function, name,
          type_name(value));
  return *integer;
}

}  // namespace quatrain::jinja
