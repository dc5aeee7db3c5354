// Python's two ways to format text: "..." % values and "...".format(values).
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/arguments.h"

namespace quatrain::jinja {

/// `format % value`: a tuple gives one value a conversion, a dict those named as %(key)s.
std::string percent_format(std::string_view format, const Value& value, Budget& budget);

/// str.format() with {}, {0}, {name}, .attribute, [item], !r, !s and the format specification.
std::string brace_format(std::string_view format, const Arguments& arguments, Budget& budget);

/// One value as a format specification says ("", ">8", ".2f", ",", "08.3e", ...).
struct FormatSpec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';    // + - space
  bool alternate = false;
  char grouping = '\0';  // , or _
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};
std::string format_value(const Value& value, const FormatSpec& spec, Budget& budget);

}  // namespace quatrain::jinja
