// Methods of strings, lists, tuples and dicts.
#pragma once

#include <optional>
#include <string_view>

#include "text/jinja/arguments.h"

namespace quatrain::jinja {

/// `self.name(arguments)` on a built-in type.
using Method = Value (*)(const Value& self, const Arguments& arguments, Budget& budget);

Method find_text_method(std::string_view name);
Method find_container_method(const Value& self, std::string_view name);

/// The bound method of that name as a value; nothing where Python's type has no attribute of that name. A
/// method that Python has and this interpreter has not, or that would change a list or dict in place
/// (jinja2's sandbox forbids it), is an undefined value whose use says so.
std::optional<Value> bound_method(const Value& self, std::string_view name);

}  // namespace quatrain::jinja
