// What filters that look into items share: attribute paths and case-insensitive keys.
#pragma once

#include "text/jinja/arguments.h"

namespace quatrain::jinja {

/// The item's attribute along a path such as "function.name" or "0", or an integer index.
Value attribute_path(const Value& item, const Value& path, Budget& budget);

/// A string in lower case unless `case_sensitive`; other values as they are.
Value sort_key(const Value& value, bool case_sensitive, Budget& budget);

/// Sorts stably by keys; an error where Python does not order two keys.
void sort_by_keys(std::vector<Value>& items, const std::vector<std::vector<Value>>& keys, bool reverse,
                  Budget& budget);

}  // namespace quatrain::jinja
