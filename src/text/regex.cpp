#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

// Steps of one match attempt; the patterns of real tokenizers stay linear in the length of a word.
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr size_t kPatternLimit = 1 << 16;
constexpr size_t kJitStack = 8 << 20;

// The same expression for PCRE2, where it reads one otherwise than Oniguruma, for which tokenizers write
// them: PCRE2 counts U+180E as white space (Unicode has not since 6.3), and takes nested classes and && in a
// class for characters.
std::string for_pcre2(std::string_view pattern, const std::string& where) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '\\' && next != '\0') {
      ++i;
      out += next == 's' ? "\\p{White_Space}" : next == 'S' ? "\\P{White_Space}" : std::string{c, next};
      continue;
    }
    out += c;
    if (!in_class) {
      in_class = c == '[';
      // A bracket right after the opening one is a character of the class.
      if (in_class && next == '^') out += pattern[++i];
      if (in_class && i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];
    } else if (c == ']') {
      in_class = false;
    } else if (c == '[' && next == ':') {  // [:alpha:]
      const size_t end = pattern.find(":]", i);
      require(end != std::string_view::npos, "{}: regular expression \"{}\": [: without :]", where,
              pattern.substr(0, 200));
      out += pattern.substr(i + 1, end + 1 - i);
      i = end + 1;
    } else {
      require(c != '[' && !(c == '&' && next == '&'),
              "{}: regular expression \"{}\": a class within a class is not supported", where,
              pattern.substr(0, 200));
    }
  }
  return out;
}

std::string error_text(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

// What a match works in; one a thread, since patterns are applied to hundreds of thousands of short pieces.
struct Workspace {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(1 << 15, kJitStack, nullptr);

  Workspace() {
    require(data != nullptr && context != nullptr, "regular expression: out of memory");
    pcre2_set_match_limit(context, kMatchLimit);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Workspace() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
};

}  // namespace

struct Regex::Code {
  pcre2_code* code;
  explicit Code(pcre2_code* compiled) : code(compiled) {}
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string pattern, std::string where)
    : pattern_(std::move(pattern)), where_(std::move(where)) {
  require(pattern_.size() <= kPatternLimit, "{}: a regular expression of {} bytes is too long (limit {})",
          where_, pattern_.size(), kPatternLimit);
  int error = 0;
  size_t offset = 0;
  // Oniguruma, for which these patterns are written, lets ^ and $ match at line ends.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE;
  const std::string source = for_pcre2(pattern_, where_);
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(), options,
                                   &error, &offset, nullptr);
  require(code != nullptr, "{}: regular expression \"{}\" at byte {}: {}", where_, pattern_.substr(0, 200),
          offset, error_text(error));
  code_ = std::make_shared<const Code>(code);
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without JIT pcre2_match interprets
}

std::optional<std::pair<size_t, size_t>> Regex::Matches::next() {
  thread_local const Workspace workspace;
  while (at_ <= text_.size()) {
    // The caller's text is valid UTF-8, and at_ is always between characters.
    const int found = pcre2_match(regex_.code_->code, reinterpret_cast<PCRE2_SPTR>(text_.data()),
                                  text_.size(), at_, PCRE2_NO_UTF_CHECK, workspace.data, workspace.context);
    if (found == PCRE2_ERROR_NOMATCH) break;
    require(found >= 0, "{}: regular expression \"{}\" gave up on a text of {} bytes: {}", regex_.where_,
            regex_.pattern_.substr(0, 200), text_.size(), error_text(found));
    const size_t* bounds = pcre2_get_ovector_pointer(workspace.data);
    const size_t begin = bounds[0], end = bounds[1];
    if (end > begin && begin >= at_) {
      at_ = end;
      return std::pair{begin, end};
    }
    // An empty match (or \K trickery) splits nothing: go on past the next character.
    const size_t from = std::max(begin, at_);
    at_ = from < text_.size() ? from + utf8_at(text_, from).size : text_.size() + 1;
  }
  at_ = text_.size() + 1;
  return std::nullopt;
}

std::string quote_regex(std::string_view literal) {
  std::string out;
  for (const char c : literal) {
    if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c)) && c != '_')
      out += '\\';
    out += c;
  }
  return out;
}

}  // namespace quatrain
