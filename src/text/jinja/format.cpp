#include "text/jinja/format.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/operators.h"
#include "text/jinja/text_operations.h"
#include "text/jinja/unicode.h"

namespace quatrain::jinja {
namespace {

constexpr int64_t kMaxPrecision =
    400;  // a double has at most 1074 digits behind the point, few of them wanted

std::string grouped(std::string digits, char separator, size_t every) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  for (size_t i = whole; i > every; i -= every) digits.insert(i - every, 1, separator);
  return digits;
}

std::string integer_digits(uint64_t magnitude, const FormatSpec& spec) {
  switch (spec.type) {
    case 'x':
      return (spec.alternate ? "0x" : "") + fmt::format("{:x}", magnitude);
    case 'X':
      return (spec.alternate ? "0X" : "") + fmt::format("{:X}", magnitude);
    case 'o':
      return (spec.alternate ? "0o" : "") + fmt::format("{:o}", magnitude);
    case 'b':
      return (spec.alternate ? "0b" : "") + fmt::format("{:b}", magnitude);
    default:
      return fmt::format("{}", magnitude);
  }
}

std::string float_digits(double magnitude, const FormatSpec& spec) {
  const auto precision = static_cast<int>(spec.precision < 0 ? 6 : std::min(spec.precision, kMaxPrecision));
  if (std::isnan(magnitude)) return "nan";
  if (std::isinf(magnitude)) return "inf";
  switch (spec.type) {
    case 'e':
      return fmt::format("{:.{}e}", magnitude, precision);
    case 'E':
      return fmt::format("{:.{}E}", magnitude, precision);
    case 'g':
      return fmt::format("{:.{}g}", magnitude, std::max(precision, 1));
    case 'G':
      return fmt::format("{:.{}G}", magnitude, std::max(precision, 1));
    case '%':
      return fmt::format("{:.{}f}%", magnitude * 100, precision);
    case '\0':
      if (spec.precision < 0) return float_repr(magnitude);
      return fmt::format("{:.{}g}", magnitude, std::max(precision, 1));
    default:
      return fmt::format("{:.{}f}", magnitude, precision);
  }
}

int64_t read_count(std::string_view text, size_t& i) {
  int64_t count = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
    count = count * 10 + (text[i] - '0');
    require(count <= static_cast<int64_t>(Budget::kMaxTextBytes),
            "a width or precision in a format is too large");
  }
  return count;
}

FormatSpec parse_spec(std::string_view text) {
  FormatSpec spec;
  size_t i = 0;
  const auto is_align = [&](size_t at) {
    return at < text.size() && std::string_view("<>^=").find(text[at]) != std::string_view::npos;
  };
  const auto take = [&](std::string_view any) {
    return i < text.size() && any.find(text[i]) != std::string_view::npos;
  };
  const size_t first = text.empty() ? 0 : code_point_at(text, 0).size;
  if (!text.empty() && is_align(first)) {
    spec.fill = text.substr(0, first);
    spec.align = text[first];
    i = first + 1;
  } else if (is_align(0)) {
    spec.align = text[i++];
  }
  if (take("+- ")) spec.sign = text[i++];
  if (take("#")) {
    spec.alternate = true;
    ++i;
  }
  if (take("0")) {
    if (spec.align == '\0') {
      spec.fill = "0";
      spec.align = '=';
    }
    ++i;
  }
  spec.width = read_count(text, i);
  if (take(",_")) spec.grouping = text[i++];
  if (take(".")) {
    ++i;
    require(take("0123456789"), "format specification '{}' lacks its precision", text);
    spec.precision = read_count(text, i);
  }
  if (i < text.size()) spec.type = text[i++];
  require(i == text.size(), "format specification '{}' is not valid", text);
  return spec;
}

// Fields of str.format(): "0.name[key]".
class BraceFormatter {
 public:
  BraceFormatter(std::string_view format, const Arguments& arguments, Budget& budget)
      : format_(format), arguments_(arguments), budget_(budget) {}

  std::string run() {
    std::string out;
    for (size_t i = 0; i < format_.size();) {
      const char c = format_[i];
      if ((c == '{' || c == '}') && i + 1 < format_.size() && format_[i + 1] == c) {
        out += c;
        i += 2;
      } else if (c == '{') {
        const size_t end = closing(i + 1);
        const std::string field = replacement(format_.substr(i + 1, end - i - 1));
        budget_.text(out.size() / 16 + field.size());
        out += field;
        require(out.size() <= Budget::kMaxTextBytes, "str.format() makes a string that is too large");
        i = end + 1;
      } else {
        require(c != '}', "single '}}' in a format string");
        out += c;
        ++i;
      }
    }
    return out;
  }

 private:
  size_t closing(size_t from) const {
    const size_t end = format_.find_first_of("{}", from);
    require(end != std::string_view::npos, "a '{{' in a format string is not closed");
    require(format_[end] == '}', "nested fields in a format string are not supported");
    return end;
  }

  std::string replacement(std::string_view field) {
    std::string_view spec;
    if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char conversion = '\0';
    if (const size_t mark = field.find('!'); mark != std::string_view::npos) {
      require(mark + 2 == field.size() && (field[mark + 1] == 'r' || field[mark + 1] == 's'),
              "the conversion '{}' of a format field is not supported", field.substr(mark));
      conversion = field[mark + 1];
      field = field.substr(0, mark);
    }
    Value value = resolve(field);
    if (conversion == 'r') value = make_text(repr(value, budget_), budget_);
    if (conversion == 's') value = make_text(to_text(value, budget_), budget_);
    return format_value(value, parse_spec(spec), budget_);
  }

  Value resolve(std::string_view field) {
    size_t i = std::min(field.find_first_of(".["), field.size());
    Value value = argument(field.substr(0, i));
    while (i < field.size()) {
      const bool bracket = field[i] == '[';
      const size_t end =
          bracket ? field.find(']', i) : std::min(field.find_first_of(".[", i + 1), field.size());
      require(end != std::string_view::npos, "a '[' in a format field is not closed");
      const std::string_view name = field.substr(i + 1, end - i - 1);
      require(!name.empty(), "an empty attribute in a format field");
      value = !bracket         ? attribute_of(value, name, budget_)
              : is_index(name) ? item_of(value, Value(index_of(name)), budget_)
                               : item_of(value, make_text(std::string(name), budget_), budget_);
      require_defined(value);
      i = bracket ? end + 1 : end;
    }
    return value;
  }

  static bool is_index(std::string_view name) {
    return !name.empty() && name.size() < 10 &&
           name.find_first_not_of("0123456789") == std::string_view::npos;
  }
  static int64_t index_of(std::string_view name) { return std::stoll(std::string(name)); }

  Value argument(std::string_view name) {
    if (name.empty() || is_index(name)) {
      const size_t index = name.empty() ? next_++ : static_cast<size_t>(index_of(name));
      require(index < arguments_.positional.size(), "a format string has no argument {}", index);
      return arguments_.positional[index];
    }
    for (const auto& [key, value] : arguments_.named)
      if (key == name) return value;
    fail("a format string has no argument '{}'", name);
  }

  std::string_view format_;
  const Arguments& arguments_;
  Budget& budget_;
  size_t next_ = 0;
};

FormatSpec percent_spec(std::string_view format, size_t& i) {
  FormatSpec spec;
  spec.align = '>';
  bool left = false, zero = false;
  for (; i < format.size() && std::string_view("-+ #0").find(format[i]) != std::string_view::npos; ++i) {
    if (format[i] == '-') left = true;
    if (format[i] == '+' || (format[i] == ' ' && spec.sign != '+')) spec.sign = format[i];
    if (format[i] == '#') spec.alternate = true;
    if (format[i] == '0') zero = true;
  }
  if (left) {
    spec.align = '<';
  } else if (zero) {
    spec.align = '=';
    spec.fill = "0";
  }
  spec.width = read_count(format, i);
  if (i < format.size() && format[i] == '.') spec.precision = read_count(format, ++i);
  while (i < format.size() && (format[i] == 'l' || format[i] == 'h' || format[i] == 'L')) ++i;
  require(i < format.size(), "incomplete format");
  spec.type = format[i++];
  return spec;
}

std::string percent_conversion(const Value& value, FormatSpec spec, Budget& budget) {
  const auto text = [&](std::string content) {
    if (spec.fill == "0") {  // zeros pad numbers only
      spec.fill = " ";
      spec.align = '>';
    }
    spec.type = 's';
    return format_value(make_text(std::move(content), budget), spec, budget);
  };
  switch (spec.type) {
    case 's':
      return text(to_text(value, budget));
    case 'r':
    case 'a':
      return text(repr(value, budget));
    case 'c':
      if (const auto code = as_integer(value)) {
        require(*code >= 0 && *code <= 0x10FFFF && (*code < 0xD800 || *code > 0xDFFF),
                "%c needs a Unicode character");
        std::string character;
        append_code_point(character, static_cast<char32_t>(*code));
        return text(character);
      }
      require(value.text() != nullptr && code_point_count(value.text()->bytes) == 1,
              "%c requires int or char");
      return text(value.text()->bytes);
    case 'd':
    case 'i':
    case 'u':
      spec.type = 'd';
      if (const double* number = value.get<double>()) {
        require(std::abs(*number) < 0x1p63, "%d of a number that does not fit 64 bits");
        return format_value(Value(static_cast<int64_t>(*number)), spec, budget);
      }
      [[fallthrough]];
    case 'x':
    case 'X':
    case 'o':
      require_defined(value);
      require(as_integer(value).has_value(), "%{} format: an integer is required, not {}", spec.type,
              type_name(value));
      return format_value(Value(*as_integer(value)), spec, budget);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      require_defined(value);
      require(as_number(value).has_value(), "must be real number, not {}", type_name(value));
      return format_value(Value(*as_number(value)), spec, budget);
    default:
      fail("unsupported format character '{}'", spec.type);
  }
}

}  // namespace

std::string format_value(const Value& value, const FormatSpec& spec, Budget& budget) {
  std::string body, sign;
  bool number = true;
  const bool flag_as_text = value.is<bool>() && spec.type == '\0';
  const bool integer_type =
      spec.type == '\0' || std::string_view("dxXob").find(spec.type) != std::string_view::npos;
  if (const auto integer = as_integer(value); integer && integer_type && !flag_as_text) {
    require(spec.precision < 0 || spec.align != '\0', "precision not allowed in integer format specifier");
    const uint64_t magnitude =
        *integer < 0 ? 0 - static_cast<uint64_t>(*integer) : static_cast<uint64_t>(*integer);
    body = integer_digits(magnitude, spec);
    if (spec.precision > static_cast<int64_t>(body.size()))
      body = justify(body, spec.precision, "0", 1, budget);
    sign = *integer < 0 ? "-" : "";
  } else if (const auto real = as_number(value);
             real && !flag_as_text &&
             (value.is<double>() || std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos)) {
    require(spec.type == '\0' || std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos,
            "unknown format code '{}' for object of type 'float'", spec.type);
    body = float_digits(std::abs(*real), spec);
    sign = std::signbit(*real) && !std::isnan(*real) ? "-" : "";
  } else {
    require(spec.type == '\0' || (spec.type == 's' && value.text() != nullptr),
            "unknown format code '{}' for object of type '{}'", spec.type, type_name(value));
    number = false;
    body = to_text(value, budget);
    if (spec.precision >= 0) {
      const auto offsets = code_point_offsets(body);
      body.resize(offsets[std::min(offsets.size() - 1, static_cast<size_t>(spec.precision))]);
    }
  }
  if (number && sign.empty() && spec.sign != '-') sign = std::string(1, spec.sign);
  if (number && spec.grouping != '\0')
    body = grouped(std::move(body), spec.grouping,
                   integer_type && spec.type != 'd' && spec.type != '\0' ? 4 : 3);
  const char align = spec.align != '\0' ? spec.align : number ? '>' : '<';
  if (align == '=') {
    require(number, "'=' alignment not allowed in string format specifier");
    return sign + justify(body, spec.width - static_cast<int64_t>(sign.size()), spec.fill, 1, budget);
  }
  body = sign + body;
  if (align != '^') return justify(body, spec.width, spec.fill, align == '<' ? -1 : 1, budget);
  // Centred text leans left in format(), unlike str.center().
  const int64_t missing = std::max<int64_t>(spec.width - static_cast<int64_t>(code_point_count(body)), 0);
  body = justify(body, spec.width - (missing - missing / 2), spec.fill, 1, budget);
  return justify(body, spec.width, spec.fill, -1, budget);
}

std::string percent_format(std::string_view format, const Value& value, Budget& budget) {
  const Sequence* tuple = value.sequence();
  if (tuple != nullptr && tuple->kind != Sequence::Kind::Tuple) tuple = nullptr;
  size_t used = 0;
  const auto next = [&]() -> Value {
    const size_t index = used++;
    require(index < (tuple != nullptr ? tuple->items.size() : 1), "not enough arguments for format string");
    return tuple != nullptr ? tuple->items[index] : value;
  };
  std::string out;
  for (size_t i = 0; i < format.size();) {
    if (format[i] != '%') {
      out += format[i++];
      continue;
    }
    ++i;
    if (i < format.size() && format[i] == '%') {
      out += format[i++];
      continue;
    }
    std::optional<Value> named;
    if (i < format.size() && format[i] == '(') {
      const size_t end = format.find(')', i);
      require(end != std::string_view::npos, "incomplete format key");
      require(value.dict() != nullptr, "format requires a mapping");
      const std::string_view key = format.substr(i + 1, end - i - 1);
      const Value* found = value.dict()->find(key);
      require(found != nullptr, "a format string has no argument '{}'", key);
      named = *found;
      i = end + 1;
    }
    const FormatSpec spec = percent_spec(format, i);
    const std::string piece = percent_conversion(named ? *named : next(), spec, budget);
    budget.text(out.size() / 16 + piece.size());
    out += piece;
    require(out.size() <= Budget::kMaxTextBytes, "% makes a string that is too large");
  }
  require(used >= (tuple != nullptr                                         ? tuple->items.size()
                   : value.dict() != nullptr || value.sequence() != nullptr ? 0
                                                                            : 1),
          "not all arguments converted during string formatting");
  return out;
}

std::string brace_format(std::string_view format, const Arguments& arguments, Budget& budget) {
  return BraceFormatter(format, arguments, budget).run();
}

}  // namespace quatrain::jinja
