// Where two texts part, for messages that say what differs.
#pragma once

#include <string>
#include <utility>

namespace quatrain {

/// The first line in which the texts differ, of each; empty for a text that ends before it.
inline std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  const size_t line = i == 0 ? std::string::npos : a.rfind('\n', i - 1);
  const size_t begin = line == std::string::npos ? 0 : line + 1;
  const auto from = [&](const std::string& text) {
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  return {from(a), from(b)};
}

}  // namespace quatrain
