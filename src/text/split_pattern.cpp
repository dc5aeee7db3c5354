#include "text/split_pattern.h"

namespace quatrain {

Regex split_pattern(const Json& pattern, const std::string& where) {
  if (pattern.is_object() && pattern.contains("String")) {
    const auto literal = json_get<std::string>(pattern, "String", where);
    require(!literal.empty(), "{}: an empty string as a pattern", where);
    return Regex(quote_regex(literal), where);
  }
  return Regex(json_get<std::string>(pattern, "Regex", where), where);
}

}  // namespace quatrain
