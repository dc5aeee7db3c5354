// Runs a syntax tree on the variables of a conversation.
#pragma once

#include <ctime>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/jinja/ast.h"

namespace quatrain::jinja {

/// The text of the template. `now` is what strftime_now() tells. Errors begin with `name`:line.
std::string render(const Body& body, std::string_view name, const OrderedJson& context, const std::tm& now);

}  // namespace quatrain::jinja
