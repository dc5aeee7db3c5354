// Does a value satisfy a schema? Written from the standard (JSON Schema 2020-12), apart from the compiler.
#pragma once

#include <cmath>
#include <regex>
#include <string>

#include "base/json.h"
#include "text/utf8.h"

namespace quatrain {

inline int64_t count_characters(const std::string& text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); at += utf8_at(text, at).size) ++count;
  return count;
}

inline bool has_type(const OrderedJson& value, const std::string& type) {
  if (type == "integer") return value.is_number() && value.get<double>() == std::floor(value.get<double>());
  return (type == "number" && value.is_number()) || (type == "string" && value.is_string()) ||
         (type == "boolean" && value.is_boolean()) || (type == "null" && value.is_null()) ||
         (type == "array" && value.is_array()) || (type == "object" && value.is_object());
}

inline bool satisfies(const OrderedJson& value, const OrderedJson& schema, const OrderedJson& root) {
  if (schema.is_boolean()) return schema.get<bool>();
  const auto count = [&](const OrderedJson& list) {
    return std::ranges::count_if(list, [&](const OrderedJson& one) { return satisfies(value, one, root); });
  };
  for (const auto& [key, rule] : schema.items()) {
    if (key == "$ref" &&
        !satisfies(value, root.at(OrderedJson::json_pointer(rule.get<std::string>().substr(1))), root))
      return false;
    if (key == "type" && rule.is_string() && !has_type(value, rule)) return false;
    if (key == "type" && rule.is_array() &&
        std::ranges::none_of(rule, [&](const OrderedJson& type) { return has_type(value, type); }))
      return false;
    if (key == "const" && value != rule) return false;
    if (key == "enum" && std::ranges::find(rule, value) == rule.end()) return false;
    if (key == "anyOf" && count(rule) == 0) return false;
    if (key == "oneOf" && count(rule) != 1) return false;
    if (key == "allOf" && count(rule) != std::ssize(rule)) return false;
    if (value.is_number()) {
      const auto number = value.get<double>();
      if (key == "minimum" && number < rule.get<double>()) return false;
      if (key == "maximum" && number > rule.get<double>()) return false;
      if (key == "exclusiveMinimum" && number <= rule.get<double>()) return false;
      if (key == "exclusiveMaximum" && number >= rule.get<double>()) return false;
    }
    if (value.is_string()) {
      const auto text = value.get<std::string>();
      if (key == "minLength" && count_characters(text) < rule.get<int64_t>()) return false;
      if (key == "maxLength" && count_characters(text) > rule.get<int64_t>()) return false;
      if (key == "pattern" && !std::regex_search(text, std::regex(rule.get<std::string>()))) return false;
    }
    if (value.is_array()) {
      if (key == "minItems" && std::ssize(value) < rule.get<int64_t>()) return false;
      if (key == "maxItems" && std::ssize(value) > rule.get<int64_t>()) return false;
      const size_t listed = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
      if (key == "prefixItems")
        for (size_t i = 0; i < std::min(listed, value.size()); ++i)
          if (!satisfies(value[i], rule[i], root)) return false;
      if (key == "items")
        for (size_t i = listed; i < value.size(); ++i)
          if (!satisfies(value[i], rule, root)) return false;
    }
    if (value.is_object()) {
      if (key == "required" && !std::ranges::all_of(rule, [&](const OrderedJson& name) {
            return value.contains(name.get<std::string>());
          }))
        return false;
      if (key == "properties")
        for (const auto& [name, inner] : rule.items())
          if (value.contains(name) && !satisfies(value[name], inner, root)) return false;
      if (key == "additionalProperties")
        for (const auto& [name, inner] : value.items())
          if (!(schema.contains("properties") && schema["properties"].contains(name)) &&
              !satisfies(inner, rule, root))
            return false;
    }
  }
  return true;
}

}  // namespace quatrain
