// Fields of a model's config.json, read strictly: a whole number is a whole number, and absent is not the
// same as mistyped.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace quatrain {

/// The field, or nullptr when it is absent or null.
inline const Json* json_field(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(std::string(key));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

/// A finite number.
inline double json_number(const Json& object, std::string_view key, std::string_view where) {
  const Json* field = json_field(object, key);
  require(field != nullptr, "{}: field \"{}\" is missing", where, key);
  require(field->is_number(), "{}: field \"{}\" must be a number, not {}", where, key,
          field->dump().substr(0, 80));
  const double value = field->get<double>();
  require(std::isfinite(value), "{}: field \"{}\" is not finite", where, key);
  return value;
}

inline double json_number_or(const Json& object, std::string_view key, double fallback,
                             std::string_view where) {
  return json_field(object, key) == nullptr ? fallback : json_number(object, key, where);
}

/// A whole number of magnitude below 2^53 (also written 4096.0).
inline int64_t json_integer(const Json& object, std::string_view key, std::string_view where) {
  const Json* field = json_field(object, key);
  require(field != nullptr, "{}: field \"{}\" is missing", where, key);
  constexpr int64_t kLimit = int64_t{1} << 53;
  const auto value = json_whole<int64_t>(*field);
  require(value && -kLimit < *value && *value < kLimit,
          "{}: field \"{}\" must be a whole number below 2^53, not {}", where, key,
          field->dump().substr(0, 80));
  return *value;
}

inline int64_t json_integer_or(const Json& object, std::string_view key, int64_t fallback,
                               std::string_view where) {
  return json_field(object, key) == nullptr ? fallback : json_integer(object, key, where);
}

inline bool json_bool_or(const Json& object, std::string_view key, bool fallback, std::string_view where) {
  const Json* field = json_field(object, key);
  if (field == nullptr) return fallback;
  require(field->is_boolean(), "{}: field \"{}\" must be true or false, not {}", where, key,
          field->dump().substr(0, 80));
  return field->get<bool>();
}

inline std::string json_string_or(const Json& object, std::string_view key, std::string_view fallback,
                                  std::string_view where) {
  const Json* field = json_field(object, key);
  if (field == nullptr) return std::string(fallback);
  require(field->is_string(), "{}: field \"{}\" must be a string, not {}", where, key,
          field->dump().substr(0, 80));
  return field->get<std::string>();
}

}  // namespace quatrain
