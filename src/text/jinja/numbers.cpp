#include "text/jinja/numbers.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "text/jinja/unicode.h"

namespace quatrain::jinja {
namespace {

// Without blanks around and with the underscores that may stand between digits; empty where they may not.
std::string plain_number(std::string_view text) {
  text = strip(text, true, true);
  std::string out;
  const auto alphanumeric = [&](size_t i) {
    return i < text.size() &&
           (is_digit(static_cast<uint8_t>(text[i])) || is_alpha(static_cast<uint8_t>(text[i])));
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (static_cast<uint8_t>(text[i]) >= 0x80 || text[i] == '\0') return {};
    if (text[i] != '_')
      out += text[i];
    else if (i == 0 || !alphanumeric(i - 1) || !alphanumeric(i + 1))
      return {};
  }
  return out;
}

}  // namespace

std::optional<int64_t> parse_integer(std::string_view text, int64_t base) {
  require(base == 0 || (base >= 2 && base <= 36), "int: base must be 0 or 2 to 36");
  std::string digits = plain_number(text);
  const bool sign = !digits.empty() && (digits[0] == '-' || digits[0] == '+');
  const size_t begin = sign ? 1 : 0;
  if (digits.size() > begin + 1 && digits[begin] == '0') {  // Python's prefixes; strtoll knows only some
    const char prefix = static_cast<char>(digits[begin + 1] | 0x20);
    const int64_t named = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 0;
    if (named != 0 && (base == named || base == 0)) {
      base = named;
      digits.erase(begin, 2);
    }
  }
  if (base == 0) base = 10;
  // strtoll would take a second prefix, sign or blanks.
  if (digits.size() == begin ||
      !(is_digit(static_cast<uint8_t>(digits[begin])) || is_alpha(static_cast<uint8_t>(digits[begin]))))
    return std::nullopt;
  if (base == 16 && digits.size() > begin + 1 && digits[begin] == '0' && (digits[begin + 1] | 0x20) == 'x')
    return std::nullopt;
  char* rest = nullptr;
  errno = 0;
  const int64_t value = std::strtoll(digits.c_str(), &rest, static_cast<int>(base));
  if (*rest != '\0') return std::nullopt;
  require(errno != ERANGE, "int: {} does not fit 64 bits", digits.substr(0, 60));
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  const std::string number = plain_number(text);
  if (number.empty() || number.find_first_of("xXpP(") != std::string::npos ||
      is_space(static_cast<uint8_t>(number[0])))
    return std::nullopt;
  char* rest = nullptr;
  const double value = std::strtod(number.c_str(), &rest);
  if (*rest != '\0' || rest == number.c_str()) return std::nullopt;
  return value;
}

std::optional<int64_t> truncated(double number) {
  if (!std::isfinite(number)) return std::nullopt;
  require(number >= -0x1p63 && number < 0x1p63, "int: {} does not fit 64 bits", number);
  return static_cast<int64_t>(number);
}

double round_float(double value, int64_t digits) {
  if (!std::isfinite(value)) return value;
  if (digits >= 0) {
    // The C library prints exactly and rounds half to even.
    return std::strtod(fmt::format("{:.{}f}", value, digits).c_str(), nullptr);
  }
  const long double scale = std::pow(10.0L, static_cast<long double>(-digits));
  return static_cast<double>(std::nearbyint(static_cast<long double>(value) / scale) * scale);
}

int64_t round_integer(int64_t value, int64_t digits) {
  if (digits >= 0) return value;
  if (digits < -18) return 0;
  int64_t scale = 1;
  for (; digits < 0; ++digits) scale *= 10;
  const int64_t remainder = ((value % scale) + scale) % scale;
  int64_t lower = 0;
  require(!__builtin_sub_overflow(value, remainder, &lower), "the rounded number does not fit 64 bits");
  const bool up =
      remainder > scale - remainder || (remainder == scale - remainder && (lower / scale) % 2 != 0);
  require(!up || !__builtin_add_overflow(lower, scale, &lower), "the rounded number does not fit 64 bits");
  return lower;
}

}  // namespace quatrain::jinja
