// Filters: value|name(arguments).
#pragma once

#include <string_view>

#include "text/jinja/arguments.h"

namespace quatrain::jinja {

using Filter = Value (*)(const Value& value, const Arguments& arguments, Budget& budget);

/// The filter of that name, or null.
Filter find_filter(std::string_view name);

// The groups that make up the table.
Filter find_text_filter(std::string_view name);
Filter find_number_filter(std::string_view name);
Filter find_sequence_filter(std::string_view name);
Filter find_selection_filter(std::string_view name);

}  // namespace quatrain::jinja
