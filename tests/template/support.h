// Shared by the template tests.
#pragma once

#include <ctime>
#include <string>

#include "base/json.h"
#include "text/chat_template.h"

namespace quatrain {

/// The time that make_expected.py froze: Sunday, 2025-03-09 14:05:07.
inline std::tm fixed_time() {
  std::tm time{};
  time.tm_year = 2025 - 1900;
  time.tm_mon = 2;
  time.tm_mday = 9;
  time.tm_hour = 14;
  time.tm_min = 5;
  time.tm_sec = 7;
  time.tm_wday = 0;
  time.tm_yday = 67;
  return time;
}

inline std::string render(std::string_view source, const OrderedJson& context = OrderedJson::object()) {
  return ChatTemplate(source, "t").render(context, fixed_time());
}

/// The text of the error that rendering ends with; empty where it does not.
inline std::string error_of(std::string_view source, const OrderedJson& context = OrderedJson::object()) {
  try {
    render(source, context);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace quatrain
