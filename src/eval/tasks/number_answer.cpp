#include "eval/tasks/number_answer.h"

#include "text/regex.h"

namespace quatrain {
namespace {

constexpr std::string_view kInvalid = "[invalid]";
constexpr std::string_view kMark = "#### ";

std::string normalized(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ',' || c == '$') continue;
    out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  if (const size_t mark = out.rfind(kMark); mark != std::string::npos) out.erase(0, mark + kMark.size());
  if (out.ends_with('.')) out.pop_back();
  return out;
}

}  // namespace

std::string strict_number(std::string_view reply) {
  static const Regex pattern("#### (?:-?[0-9.,]+)", "gsm8k");
  Regex::Matches matches(pattern, reply);
  const auto match = matches.next();
  if (!match) return std::string(kInvalid);
  return std::string(reply.substr(match->first, match->second - match->first).substr(kMark.size()));
}

std::string flexible_number(std::string_view reply) {
  static const Regex pattern("-?[$0-9.,]{2,}|-?[0-9]+", "gsm8k");
  Regex::Matches matches(pattern, reply);
  std::string last(kInvalid);
  while (const auto match = matches.next()) last = reply.substr(match->first, match->second - match->first);
  return last;
}

bool same_number(std::string_view extracted, std::string_view reference) {
  return normalized(extracted) == normalized(reference);
}

}  // namespace quatrain
