// From the text of a template to its syntax tree.
#pragma once

#include <string_view>

#include "text/jinja/ast.h"

namespace quatrain::jinja {

/// Parses a template. Errors begin with `name`:line. A filter or test that is not known is an error here,
/// except inside {% if %} and conditional expressions, where it is one only if it runs (as in jinja2).
Body parse_template(std::string_view source, std::string_view name);

}  // namespace quatrain::jinja
