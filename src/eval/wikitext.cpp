#include "eval/wikitext.h"

#include <array>
#include <utility>

namespace quatrain {
namespace {

bool is_ascii_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f');
}

// Bytes of the white space character (as Python's str.isspace has it) at the start of `text`, or 0.
size_t space_length(std::string_view text) {
  if (text.empty()) return 0;
  if (is_ascii_space(text[0])) return 1;
  static constexpr std::array<std::string_view, 19> wide = {
      "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
      "\u2007", "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  for (const std::string_view space : wide)
    if (text.starts_with(space)) return space.size();
  return 0;
}

std::string_view strip(std::string_view text) {
  while (const size_t length = space_length(text)) text.remove_prefix(length);
  for (bool again = true; again && !text.empty();) {
    again = false;
    for (size_t length = 1; length <= 3 && length <= text.size(); ++length) {
      if (space_length(text.substr(text.size() - length)) != length) continue;
      text.remove_suffix(length);
      again = true;
      break;
    }
  }
  return text;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  size_t start = 0;
  for (size_t at; (at = text.find(from, start)) != std::string::npos; start = at + from.size()) {
    out.append(text, start, at - start);
    out += to;
  }
  out.append(text, start);
  text = std::move(out);
}

// Takes the white space off the inside of every `open ... close` pair.
void tighten(std::string& text, char open, char close) {
  std::string out;
  size_t start = 0;
  for (;;) {
    const size_t begin = text.find(open, start);
    const size_t end = begin == std::string::npos ? begin : text.find(close, begin + 1);
    if (end == std::string::npos) break;
    out.append(text, start, begin - start + 1);
    out += strip(std::string_view(text).substr(begin + 1, end - begin - 1));
    out += close;
    start = end + 1;
  }
  out.append(text, start);
  text = std::move(out);
}

// " = Title = " begins a page; " = = Section = = " does not.
bool is_page_heading(std::string_view line) {
  std::string text(line);
  replace_all(text, "= = =", "===");
  replace_all(text, "= =", "==");
  const std::string_view heading = strip(text);
  return heading.starts_with("= ") && heading.ends_with(" =");
}

}  // namespace

std::vector<std::string> wikitext_pages(std::string_view text) {
  std::vector<std::string> pages;
  std::string page;
  bool first_line = true;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    const std::string_view line = text.substr(start, end - start);
    if (is_page_heading(line)) {
      if (!strip(page).empty()) pages.push_back(page);
      page.clear();
      first_line = true;
    }
    if (!first_line) page += '\n';
    page += line;
    first_line = false;
    start = end + 1;
  }
  if (!strip(page).empty()) pages.push_back(page);
  return pages;
}

std::string wikitext_detokenize(std::string_view page) {
  // lm-eval also has a rule for "/' [0-9]/"; its slashes are literal, so it never applies to prose
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 10> before = {{
      {"s '", "s'"},
      {" @-@ ", "-"},
      {" @,@ ", ","},
      {" @.@ ", "."},
      {" : ", ": "},
      {" ; ", "; "},
      {" . ", ". "},
      {" ! ", "! "},
      {" ? ", "? "},
      {" , ", ", "},
  }};
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 8> after = {{
      {"= = = =", "===="},
      {"= = =", "==="},
      {"= =", "=="},
      {" \u00b0 ", "\u00b0"},
      {" \n", "\n"},
      {"\n ", "\n"},
      {" N ", " 1 "},
      {" 's", "'s"},
  }};
  std::string text(page);
  for (const auto& [from, to] : before) replace_all(text, from, to);
  tighten(text, '(', ')');
  tighten(text, '[', ']');
  tighten(text, '{', '}');
  tighten(text, '"', '"');
  tighten(text, '\'', '\'');
  for (const auto& [from, to] : after) replace_all(text, from, to);
  return text;
}

int64_t count_words(std::string_view page) {
  int64_t words = 1;
  bool in_space = false;
  while (!page.empty()) {
    const size_t length = space_length(page);
    if (length > 0 && !in_space) ++words;
    in_space = length > 0;
    page.remove_prefix(length > 0 ? length : 1);
  }
  return words;
}

}  // namespace quatrain
