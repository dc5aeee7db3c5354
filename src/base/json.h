// JSON with errors that name the file and the field.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace quatrain {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

/// Parses a document. `where` (a file name) begins the error text. Refuses nesting deeper than 256 levels.
Json parse_json(std::string_view text, std::string_view where);

/// As parse_json, with the keys of objects in the order of the text (templates print them so).
OrderedJson parse_ordered_json(std::string_view text, std::string_view where);

/// What nlohmann says was wrong, without its label "[json.exception.parse_error.101]".
std::string json_reason(const nlohmann::json::exception& error);

Json read_json(const fs::path& path);

/// The field `key` of an object as T; missing or mistyped is an error that names where and key.
template <typename T>
T json_get(const Json& object, std::string_view key, std::string_view where) {
  const auto found = object.is_object() ? object.find(std::string(key)) : object.end();
  require(object.is_object() && found != object.end(), "{}: field \"{}\" is missing", where, key);
  try {
    return found->template get<T>();
  } catch (const nlohmann::json::exception&) {
    fail("{}: field \"{}\" has the wrong type: {}", where, key, found->dump().substr(0, 80));
  }
}

/// As json_get; missing or null gives the fallback.
template <typename T>
T json_get_or(const Json& object, std::string_view key, T fallback, std::string_view where) {
  if (!object.is_object()) return fallback;
  const auto found = object.find(std::string(key));
  if (found == object.end() || found->is_null()) return fallback;
  return json_get<T>(object, key, where);
}

}  // namespace quatrain
