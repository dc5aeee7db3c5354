// Filters that give numbers, and default (filters.h).
#include <cmath>
#include <cstdlib>

#include "text/jinja/filter_table.h"
#include "text/jinja/numbers.h"
#include "text/jinja/operators.h"

namespace quatrain::jinja {
namespace {

Value absolute(const Value& value, const Arguments& arguments, Budget&) {
  expect_no_arguments("abs", arguments);
  require_defined(value);
  if (const auto integer = as_integer(value)) return *integer < 0 ? negate(value) : Value(*integer);
  require(value.is<double>(), "bad operand type for abs(): '{}'", type_name(value));
  return Value(std::abs(*value.get<double>()));
}

Value integer(const Value& value, const Arguments& arguments, Budget&) {
  const auto [fallback, base] = bind("int", arguments, "default", "base");
  require_defined(value);
  const int64_t radix = base ? integer_argument("int", "base", *base) : 10;
  std::optional<int64_t> result = as_integer(value);
  if (const double* number = value.get<double>()) result = truncated(*number);
  if (const Text* text = value.text()) {
    result = parse_integer(text->bytes, radix);
    if (!result)
      if (const auto number = parse_float(text->bytes)) result = truncated(*number);
  }
  return result ? Value(*result) : fallback.value_or(Value(int64_t{0}));
}

Value real(const Value& value, const Arguments& arguments, Budget&) {
  const auto [fallback] = bind("float", arguments, "default");
  require_defined(value);
  std::optional<double> result = as_number(value);
  if (const Text* text = value.text()) result = parse_float(text->bytes);
  return result ? Value(*result) : fallback.value_or(Value(0.0));
}

Value rounded(const Value& value, const Arguments& arguments, Budget&) {
  const auto [digits, method] = bind("round", arguments, "precision", "method");
  const int64_t precision = digits ? integer_argument("round", "precision", *digits) : 0;
  const std::string how = method ? text_argument("round", "method", *method) : "common";
  require(how == "common" || how == "ceil" || how == "floor", "round: method must be common, ceil or floor");
  require_defined(value);
  require(as_number(value).has_value(), "type {} cannot be rounded", type_name(value));
  require(std::abs(precision) <= 300, "round: a precision of {} is out of range", precision);
  if (how != "common") {
    const double scale = std::pow(10.0, static_cast<double>(precision)), scaled = *as_number(value) * scale;
    return Value((how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (const auto whole = as_integer(value)) return Value(round_integer(*whole, precision));
  return Value(round_float(*value.get<double>(), precision));
}

Value length(const Value& value, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("length", arguments);
  return Value(length_of(value, budget));
}

Value fallback(const Value& value, const Arguments& arguments, Budget&) {
  const auto [other, boolean] = bind("default", arguments, "default_value", "boolean");
  const bool use_other = value.undefined() || (boolean && truthy(*boolean) && !truthy(value));
  return use_other ? other.value_or(Value(std::string())) : value;
}

constexpr FilterEntry kFilters[] = {
    {"abs", absolute}, {"count", length}, {"d", fallback},    {"default", fallback},
    {"float", real},   {"int", integer},  {"length", length}, {"round", rounded},
};

}  // namespace

Filter find_number_filter(std::string_view name) {
  return find_in(kFilters, name);
}

}  // namespace quatrain::jinja
