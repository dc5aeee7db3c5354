#include "text/jinja/operators.h"

#include <cmath>

#include "text/jinja/format.h"

namespace quatrain::jinja {
namespace {

using Op = Binary::Op;

std::string_view sign_of(Op op) {
  switch (op) {
    case Op::Add:
      return "+";
    case Op::Subtract:
      return "-";
    case Op::Multiply:
      return "*";
    case Op::Divide:
      return "/";
    case Op::FloorDivide:
      return "//";
    case Op::Modulo:
      return "%";
    case Op::Power:
      return "** or pow()";
    case Op::And:
    case Op::Or:
      break;
  }
  return "and/or";
}

int64_t floor_divide(int64_t left, int64_t right) {
  const int64_t quotient = left / right;
  return quotient - (left % right != 0 && (left < 0) != (right < 0) ? 1 : 0);
}

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (bool first = true; exponent > 0; exponent >>= 1, first = false) {
    // |base| grows beyond 64 bits only while a factor is still to come, so this overflow is the result's too.
    if (!first) require(!__builtin_mul_overflow(base, base, &base), "the result of ** does not fit 64 bits");
    if ((exponent & 1) != 0)
      require(!__builtin_mul_overflow(result, base, &result), "the result of ** does not fit 64 bits");
  }
  return result;
}

Value integers(Op op, int64_t left, int64_t right) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Op::Add:
      overflow = __builtin_add_overflow(left, right, &result);
      break;
    case Op::Subtract:
      overflow = __builtin_sub_overflow(left, right, &result);
      break;
    case Op::Multiply:
      overflow = __builtin_mul_overflow(left, right, &result);
      break;
    case Op::Divide:
      require(right != 0, "division by zero");
      return Value(static_cast<double>(static_cast<long double>(left) / static_cast<long double>(right)));
    case Op::FloorDivide:
      require(right != 0, "integer division or modulo by zero");
      overflow = left == INT64_MIN && right == -1;
      if (!overflow) result = floor_divide(left, right);
      break;
    case Op::Modulo:
      require(right != 0, "integer division or modulo by zero");
      if (right != -1) result = left - floor_divide(left, right) * right;
      break;
    case Op::Power:
      if (right < 0) {
        require(left != 0, "0.0 cannot be raised to a negative power");
        return Value(std::pow(static_cast<double>(left), static_cast<double>(right)));
      }
      result = integer_power(left, right);
      break;
    case Op::And:
    case Op::Or:
      break;
  }
  require(!overflow, "the result of {} does not fit 64 bits", sign_of(op));
  return Value(result);
}

Value floats(Op op, double left, double right) {
  switch (op) {
    case Op::Add:
      return Value(left + right);
    case Op::Subtract:
      return Value(left - right);
    case Op::Multiply:
      return Value(left * right);
    case Op::Divide:
      require(right != 0, "float division by zero");
      return Value(left / right);
    case Op::FloorDivide:
    case Op::Modulo: {
      require(right != 0, "float floor division or modulo by zero");
      double remainder = std::fmod(left, right);
      if (remainder != 0 && (remainder < 0) != (right < 0)) remainder += right;
      if (op == Op::Modulo) return Value(remainder == 0 ? std::copysign(0.0, right) : remainder);
      const double quotient = (left - remainder) / right;
      double floored = std::floor(quotient);
      if (quotient - floored > 0.5) floored += 1;
      return Value(floored);
    }
    case Op::Power: {
      require(left != 0 || right >= 0, "0.0 cannot be raised to a negative power");
      require(left >= 0 || std::floor(right) == right, "a negative number to a fractional power is complex");
      const double result = std::pow(left, right);
      require(!std::isinf(result) || std::isinf(left) || std::isinf(right), "the result of ** is too large");
      return Value(result);
    }
    case Op::And:
    case Op::Or:
      break;
  }
  return {};
}

Value add_texts(const Value& left, const Value& right, Budget& budget) {
  const bool markup = left.text()->markup || right.text()->markup;
  const Value a = markup ? escape_markup(left, budget) : left,
              b = markup ? escape_markup(right, budget) : right;
  budget.text(a.text()->bytes.size() + b.text()->bytes.size());
  return Value(a.text()->bytes + b.text()->bytes, markup);
}

Value repeat(const Value& value, int64_t count, Budget& budget) {
  const auto times = static_cast<uint64_t>(std::max<int64_t>(count, 0));
  if (const Text* text = value.text()) {
    uint64_t size = 0;
    require(!__builtin_mul_overflow(text->bytes.size(), times, &size), "the repeated string is too large");
    budget.text(size);
    std::string out;
    out.reserve(size);
    for (uint64_t i = 0; i < times && !text->bytes.empty(); ++i) out += text->bytes;
    return Value(std::move(out), text->markup);
  }
  const Sequence& sequence = *value.sequence();
  uint64_t size = 0;
  require(!__builtin_mul_overflow(sequence.items.size(), times, &size), "the repeated list is too large");
  budget.items(size);
  std::vector<Value> items;
  items.reserve(size);
  for (uint64_t i = 0; i < times && !sequence.items.empty(); ++i)
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  return make_sequence(std::move(items), budget, sequence.kind);
}

bool repeatable(const Value& value) {
  const Sequence* sequence = value.sequence();
  return value.text() != nullptr || (sequence != nullptr && (sequence->kind == Sequence::Kind::List ||
                                                             sequence->kind == Sequence::Kind::Tuple));
}

}  // namespace

Value apply(Op op, const Value& left, const Value& right, Budget& budget) {
  require_defined(left);
  if (op == Op::Modulo && left.text() != nullptr)
    return make_text(percent_format(left.text()->bytes, right, budget), budget, left.text()->markup);
  require_defined(right);
  if (const auto a = as_integer(left), b = as_integer(right); a && b) return integers(op, *a, *b);
  if (const auto a = as_number(left), b = as_number(right); a && b) return floats(op, *a, *b);
  if (op == Op::Add) {
    if (left.text() != nullptr && right.text() != nullptr) return add_texts(left, right, budget);
    if (repeatable(left) && repeatable(right) && left.sequence() != nullptr && right.sequence() != nullptr &&
        left.sequence()->kind == right.sequence()->kind) {
      budget.items(left.sequence()->items.size() + right.sequence()->items.size());
      std::vector<Value> items = left.sequence()->items;
      items.insert(items.end(), right.sequence()->items.begin(), right.sequence()->items.end());
      return make_sequence(std::move(items), budget, left.sequence()->kind);
    }
    if (left.text() != nullptr) fail("can only concatenate str (not \"{}\") to str: use ~", type_name(right));
  }
  if (op == Op::Multiply) {
    if (const auto count = as_integer(right); count && repeatable(left)) return repeat(left, *count, budget);
    if (const auto count = as_integer(left); count && repeatable(right)) return repeat(right, *count, budget);
  }
  fail("unsupported operand type(s) for {}: '{}' and '{}'", sign_of(op), type_name(left), type_name(right));
}

Value negate(const Value& value) {
  require_defined(value);
  if (const auto integer = as_integer(value)) {
    require(*integer != INT64_MIN, "the result of - does not fit 64 bits");
    return Value(-*integer);
  }
  if (const double* number = value.get<double>()) return Value(-*number);
  fail("bad operand type for unary -: '{}'", type_name(value));
}

bool compare(Comparison::Op op, const Value& left, const Value& right, Budget& budget) {
  using Compare = Comparison::Op;
  switch (op) {
    case Compare::Equal:
      return equal(left, right, budget);
    case Compare::NotEqual:
      return !equal(left, right, budget);
    case Compare::Less:
      return order(left, right, budget, "<") == -1;
    case Compare::LessEqual:
      return order(left, right, budget, "<=").value_or(1) <= 0;
    case Compare::Greater:
      return order(left, right, budget, ">") == 1;
    case Compare::GreaterEqual:
      return order(left, right, budget, ">=").value_or(-1) >= 0;
    case Compare::In:
      return contains(right, left, budget);
    case Compare::NotIn:
      return !contains(right, left, budget);
  }
  return false;
}

Value call_value(const Value& callee, const Arguments& arguments, Budget& budget) {
  require_defined(callee);
  require(callee.object() != nullptr, "'{}' object is not callable", type_name(callee));
  return callee.object()->call(arguments, budget);
}

Value escape_markup(const Value& value, Budget& budget) {
  if (const Text* text = value.text(); text != nullptr && text->markup) return value;
  std::string out;
  for (const char c : to_text(value, budget)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return make_text(std::move(out), budget, true);
}

}  // namespace quatrain::jinja
