// Python's int(), float() and round().
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace quatrain::jinja {

/// int(text, base); nothing where Python raises ValueError, an error beyond 64 bits.
std::optional<int64_t> parse_integer(std::string_view text, int64_t base);
/// float(text); nothing where Python raises ValueError.
std::optional<double> parse_float(std::string_view text);
/// int(number); nothing for NaN and infinity, an error beyond 64 bits.
std::optional<int64_t> truncated(double number);

/// round(): half to even on the exact value.
double round_float(double value, int64_t digits);
int64_t round_integer(int64_t value, int64_t digits);

}  // namespace quatrain::jinja
