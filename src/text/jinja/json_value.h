// JSON into values, and values into JSON as Python's json.dumps writes it.
#pragma once

#include <string>

#include "base/json.h"
#include "text/jinja/value.h"

namespace quatrain::jinja {

/// Objects become dicts in their order. An integer beyond 64 bits is an error.
Value from_json(const OrderedJson& json, Budget& budget);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // text of one level; absent: one line
  std::string item_separator = ", ";  // "," where indent is given and the caller names no separators
  std::string key_separator = ": ";
};
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace quatrain::jinja
