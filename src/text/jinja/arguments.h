// Arguments of a call, and their distribution over parameter names.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace quatrain::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Puts arguments into `count` slots by position, then by name; too many, unknown or doubled ones are errors.
void bind_into(std::string_view function, const Arguments& arguments, const std::string_view* names,
               std::optional<Value>* slots, size_t count);

/// bind("indent", arguments, "width", "first", "blank"): one optional a parameter.
template <typename... Names>
std::array<std::optional<Value>, sizeof...(Names)> bind(std::string_view function, const Arguments& arguments,
                                                        Names... names) {
  const std::array<std::string_view, sizeof...(Names)> list{names...};
  std::array<std::optional<Value>, sizeof...(Names)> slots;
  bind_into(function, arguments, list.data(), slots.data(), slots.size());
  return slots;
}

void expect_no_arguments(std::string_view function, const Arguments& arguments);
/// The value of a parameter that has no default.
const Value& required(std::string_view function, std::string_view name, const std::optional<Value>& slot);
/// A string parameter.
const std::string& text_argument(std::string_view function, std::string_view name, const Value& value);
int64_t integer_argument(std::string_view function, std::string_view name, const Value& value);

}  // namespace quatrain::jinja
