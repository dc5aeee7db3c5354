// Whether two schemas exclude each other, as far as that is easy to see.
#pragma once

#include <string_view>

#include "base/json.h"

namespace quatrain {

/// Whether a value has a type of JSON Schema ("integer", "object", ...).
bool is_of_type(const OrderedJson& value, std::string_view type);

/// True when surely no value satisfies both: their types differ, or their constants do, or those of a
/// property that both require. References are followed within `root`.
bool never_both(const OrderedJson& a, const OrderedJson& b, const OrderedJson& root);

}  // namespace quatrain
