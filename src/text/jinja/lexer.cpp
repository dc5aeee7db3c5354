#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/error.h"
#include "text/jinja/unicode.h"

namespace quatrain::jinja {
namespace {

using Kind = Token::Kind;

bool digit(char c) {
  return c >= '0' && c <= '9';
}

bool name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<uint8_t>(c) >= 0x80;
}

bool name_part(char c) {
  return name_start(c) || digit(c);
}

// Line ends become \n, and one at the end of the template is dropped, as jinja2 does.
std::string normalized(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  Lexer(std::string_view source, std::string_view name) : source_(normalized(source)), name_(name) {}

  std::vector<Token> run() {
    const std::string_view text = source_;
    while (position_ < text.size()) {
      const size_t tag = find_tag(position_);
      if (tag == std::string_view::npos) {
        emit_data(text.substr(position_), 0, false);
        break;
      }
      const char kind = text[tag + 1];
      const size_t after = tag + 2;
      const char sign =
          after < text.size() && (text[after] == '-' || text[after] == '+') ? text[after] : '\0';
      emit_data(text.substr(position_, tag - position_), sign, kind != '{');
      const size_t inner = after + (sign != '\0' ? 1 : 0);
      if (kind == '#') {
        move_to(inner);
        skip_comment();
      } else if (const size_t raw = kind == '%' ? raw_begin(inner) : 0; raw != 0) {
        move_to(raw);
        read_raw();
      } else {
        push(kind == '%' ? Kind::BlockBegin : Kind::VariableBegin);
        move_to(inner);
        read_tag(kind == '%' ? '%' : '}');
      }
      line_starting_ = position_ > 0 && text[position_ - 1] == '\n';
    }
    push(Kind::End);
    return std::move(tokens_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void error(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}:{}: {}", name_, line_, fmt::format(format, std::forward<Args>(args)...));
  }

  void push(Kind kind, std::string text = {}) { tokens_.push_back({kind, line_, std::move(text)}); }

  void move_to(size_t position) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(position_),
                                         source_.begin() + static_cast<ptrdiff_t>(position), '\n'));
    position_ = position;
  }

  char at(size_t position) const { return position < source_.size() ? source_[position] : '\0'; }
  bool looking_at(size_t position, std::string_view text) const {
    return std::string_view(source_).substr(std::min(position, source_.size())).starts_with(text);
  }
  size_t skip_space(size_t position) const {
    const std::string_view rest = std::string_view(source_).substr(position);
    return position + (rest.size() - strip(rest, true, false).size());
  }

  size_t find_tag(size_t from) const {
    for (size_t i = source_.find('{', from); i != std::string::npos; i = source_.find('{', i + 1))
      if (at(i + 1) == '{' || at(i + 1) == '%' || at(i + 1) == '#') return i;
    return std::string_view::npos;
  }

  // Text before a tag. `sign` is the tag's - or +; lstrip_blocks drops the blanks of a line that only the tag
  // follows, unless the tag prints or has a +.
  void emit_data(std::string_view text, char sign, bool strippable) {
    const size_t end = position_ + text.size();
    if (sign == '-') {
      text = strip(text, false, true);
    } else if (sign != '+' && strippable) {
      const size_t newline = text.rfind('\n');
      const size_t start = newline == std::string_view::npos ? 0 : newline + 1;
      if ((start > 0 || line_starting_) && strip(text.substr(start), true, false).empty())
        text = text.substr(0, start);
    }
    if (!text.empty()) push(Kind::Data, std::string(text));
    move_to(end);
  }

  // The end of a tag at `position`, past what it strips; 0 where none is. `last` is the bracket's first
  // character: '%', '#' or '}'. trim_blocks: a line end after a block or comment goes too.
  size_t tag_end(size_t position, char last) const {
    const char bracket[] = {last, '}', '\0'};
    if (looking_at(position, bracket)) {
      const size_t end = position + 2;
      return last != '}' && at(end) == '\n' ? end + 1 : end;
    }
    if (at(position) == '-' && looking_at(position + 1, bracket)) return skip_space(position + 3);
    if (last != '}' && at(position) == '+' && looking_at(position + 1, bracket)) return position + 3;
    return 0;
  }

  void skip_comment() {
    for (size_t i = position_; i < source_.size(); ++i)
      if (const size_t end = tag_end(i, '#')) return move_to(end);
    error("a comment is not closed with #}}");
  }

  // Past "raw %}" at `position`, or 0. No trim_blocks here: jinja2 keeps the line end.
  size_t raw_begin(size_t position) const {
    size_t i = skip_space(position);
    if (!looking_at(i, "raw")) return 0;
    i = skip_space(i + 3);
    if (looking_at(i, "%}")) return i + 2;
    if (looking_at(i, "-%}")) return skip_space(i + 3);
    return 0;
  }

  void read_raw() {
    for (size_t i = source_.find("{%", position_); i != std::string::npos; i = source_.find("{%", i + 1)) {
      const char sign = at(i + 2) == '-' || at(i + 2) == '+' ? at(i + 2) : '\0';
      size_t end = skip_space(i + 2 + (sign != '\0' ? 1 : 0));
      if (!looking_at(end, "endraw")) continue;
      end = tag_end(skip_space(end + 6), '%');
      if (end == 0) continue;
      line_starting_ = position_ > 0 && source_[position_ - 1] == '\n';
      emit_data(std::string_view(source_).substr(position_, i - position_), sign, true);
      return move_to(end);
    }
    error("a raw block is not closed with {{% endraw %}}");
  }

  void read_tag(char last) {
    std::string open;  // brackets that wait for their partner
    for (;;) {
      move_to(skip_space(position_));
      if (position_ >= source_.size()) error("the template ends inside a tag");
      if (open.empty())
        if (const size_t end = tag_end(position_, last)) {
          push(last == '%' ? Kind::BlockEnd : Kind::VariableEnd);
          return move_to(end);
        }
      const char c = at(position_);
      if (digit(c)) {
        read_number();
      } else if (name_start(c)) {
        size_t end = position_;
        while (name_part(at(end))) ++end;
        push(Kind::Name, source_.substr(position_, end - position_));
        move_to(end);
      } else if (c == '\'' || c == '"') {
        read_string();
      } else {
        read_operator(open);
      }
    }
  }

  void read_operator(std::string& open) {
    static constexpr std::array<std::string_view, 27> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
        "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!"};
    for (const std::string_view op : kOperators) {
      if (!looking_at(position_, op)) continue;
      const char c = op[0];
      if (c == '!' && op.size() == 1) break;
      if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (open.empty()) error("unexpected '{}'", c);
        if (open.back() != c) error("unexpected '{}', expected '{}'", c, open.back());
        open.pop_back();
      }
      push(Kind::Operator, std::string(op));
      return move_to(position_ + op.size());
    }
    error("unexpected character '{}'", at(position_));
  }

  // Digits with single underscores between them.
  size_t skip_digits(size_t i) const {
    while (digit(at(i)) || (at(i) == '_' && digit(at(i + 1)))) ++i;
    return i;
  }

  void read_number() {
    const size_t begin = position_;
    const char prefix = static_cast<char>(at(begin) == '0' ? at(begin + 1) | 0x20 : '\0');
    const int base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
    size_t end = begin;
    bool is_float = false;
    if (base != 10) {
      end = begin + 2;
      while (name_part(at(end))) ++end;
    } else {
      end = skip_digits(begin);
      if (begin == 0 || at(begin - 1) != '.') {  // x.0.1 is two subscripts
        if (at(end) == '.' && digit(at(end + 1))) {
          end = skip_digits(end + 1);
          is_float = true;
        }
        const size_t power = end + 1 + (at(end + 1) == '+' || at(end + 1) == '-' ? 1 : 0);
        if ((at(end) == 'e' || at(end) == 'E') && digit(at(power))) {
          end = skip_digits(power);
          is_float = true;
        }
      }
    }
    std::string digits = source_.substr(begin + (base != 10 ? 2 : 0), end - begin - (base != 10 ? 2 : 0));
    std::erase(digits, '_');
    Token token{is_float ? Kind::Float : Kind::Integer, line_, {}};
    if (is_float) {
      token.number = std::strtod(digits.c_str(), nullptr);
    } else {
      if (base == 10 && digits.size() > 1 && digits[0] == '0' &&
          digits.find_first_not_of('0') != std::string::npos)
        error("an integer may not begin with 0: {}", digits);
      char* rest = nullptr;
      errno = 0;
      token.integer = std::strtoll(digits.c_str(), &rest, base);
      if (digits.empty() || *rest != '\0') error("not a number: {}", source_.substr(begin, end - begin));
      if (errno == ERANGE) error("integer {} does not fit 64 bits", digits);
    }
    tokens_.push_back(std::move(token));
    move_to(end);
  }

  void read_string() {
    const char quote = at(position_);
    std::string value;
    size_t i = position_ + 1;
    while (at(i) != quote || i >= source_.size()) {
      if (i >= source_.size()) error("a string is not closed");
      if (at(i) == '\\') {
        i = read_escape(i + 1, value);
      } else {
        value += at(i++);
      }
    }
    push(Kind::String, std::move(value));
    move_to(i + 1);
  }

  // Python's escapes; `i` is behind the backslash. Unknown ones stay as they are.
  size_t read_escape(size_t i, std::string& value) const {
    static constexpr std::string_view kNames = "abfnrtv\\'\"", kValues = "\a\b\f\n\r\t\v\\'\"";
    const char c = at(i);
    if (const size_t simple = kNames.find(c); simple != std::string_view::npos && i < source_.size()) {
      value += kValues[simple];
      return i + 1;
    }
    if (c == '\n') return i + 1;
    if (c == 'N') error("\\N{{...}} in a string is not supported: write \\uXXXX");
    int base = 16;
    size_t count = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    size_t begin = i + 1;
    if (c >= '0' && c <= '7') {
      base = 8;
      begin = i;
      while (count < 3 && at(begin + count) >= '0' && at(begin + count) <= '7') ++count;
    }
    if (count == 0) {
      value += '\\';
      return i;
    }
    const std::string digits = source_.substr(std::min(begin, source_.size()), count);
    char* rest = nullptr;
    const unsigned long code = std::strtoul(digits.c_str(), &rest, base);
    if (digits.size() != count || *rest != '\0' || digits[0] == '-' || digits[0] == '+' || digits[0] == ' ')
      error("truncated \\{} escape in a string", c);
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      error("\\{}{} is no Unicode character", c, digits);
    append_code_point(value, static_cast<char32_t>(code));
    return begin + count;
  }

  std::string source_;
  std::string name_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, std::string_view name) {
  return Lexer(source, name).run();
}

}  // namespace quatrain::jinja
