// JSON with errors that name the file and the field.
#pragma once

#include <cmath>
#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

/// A number's value, when it is whole and an Integer holds it; 7.0 is 7. (nlohmann's own get<> cuts 7.5 to 7,
/// wraps 2^32 + 1 to 1, and has no defined answer to 1e100.)
template <std::integral Integer, typename AnyJson>
std::optional<Integer> json_whole(const AnyJson& value) {
  constexpr auto narrowed = [](auto whole) {
    return std::in_range<Integer>(whole) ? std::optional(static_cast<Integer>(whole)) : std::nullopt;
  };
  if (value.is_number_unsigned()) return narrowed(value.template get<uint64_t>());
  if (value.is_number_integer()) return narrowed(value.template get<int64_t>());
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.template get<double>();
  // Beyond it a conversion to int64_t is undefined; NaN fails the comparison too.
  constexpr double kLimit = 0x1p63;
  if (!(number >= -kLimit && number < kLimit) || number != std::trunc(number)) return std::nullopt;
  return narrowed(static_cast<int64_t>(number));
}

/// The field `key` of an object as T; missing, mistyped or (for integers) no whole number that T holds is an
/// error that names where and key.
template <typename T>
T json_get(const Json& object, std::string_view key, std::string_view where) {
  const auto found = object.is_object() ? object.find(std::string(key)) : object.end();
  require(object.is_object() && found != object.end(), "{}: field \"{}\" is missing", where, key);
  if constexpr (std::integral<T> && !std::same_as<T, bool>) {
    const std::optional<T> whole = json_whole<T>(*found);
    require(whole.has_value(), "{}: field \"{}\" must be a whole number from {} to {}, is {}", where, key,
            std::numeric_limits<T>::min(), std::numeric_limits<T>::max(), found->dump().substr(0, 80));
    return *whole;
  } else {
    try {
      return found->template get<T>();
    } catch (const nlohmann::json::exception&) {
      fail("{}: field \"{}\" has the wrong type: {}", where, key, found->dump().substr(0, 80));
    }
  }
}

/// A list of whole numbers that each fit Integer, in errors called `where`.
template <std::integral Integer>
std::vector<Integer> json_whole_numbers(const Json& list, std::string_view where) {
  require(list.is_array(), "{}: {} must be a list of whole numbers", where, list.dump().substr(0, 80));
  std::vector<Integer> numbers;
  for (const Json& value : list) {
    const std::optional<Integer> number = json_whole<Integer>(value);
    require(number.has_value(), "{}: a list must hold whole numbers from {} to {}, has {}", where,
            std::numeric_limits<Integer>::min(), std::numeric_limits<Integer>::max(),
            value.dump().substr(0, 80));
    numbers.push_back(*number);
  }
  return numbers;
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
