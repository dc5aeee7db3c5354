// Tests: value is name(arguments).
#pragma once

#include <string_view>

#include "text/jinja/arguments.h"

namespace quatrain::jinja {

using Test = bool (*)(const Value& value, const Arguments& arguments, Budget& budget);

/// The test of that name, or null.
Test find_test(std::string_view name);

}  // namespace quatrain::jinja
