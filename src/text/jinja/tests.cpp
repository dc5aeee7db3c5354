#include "text/jinja/tests.h"

#include <algorithm>
#include <utility>

#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace quatrain::jinja {
namespace {

using Op = Comparison::Op;

template <bool (*Holds)(const Value&)>
bool plain(const Value& value, const Arguments& arguments, Budget&) {
  expect_no_arguments("test", arguments);
  return Holds(value);
}

template <Op Relation>
bool related(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [other] = bind("test", arguments, "other");
  return compare(Relation, value, required("test", "other", other), budget);
}

bool is_sequence(const Value& value) {
  const Sequence* sequence = value.sequence();
  return value.undefined() || value.text() != nullptr || value.dict() != nullptr ||
         (sequence != nullptr &&
          (sequence->kind == Sequence::Kind::List || sequence->kind == Sequence::Kind::Tuple ||
           sequence->kind == Sequence::Kind::Range));
}

bool is_iterable(const Value& value) {
  return value.undefined() || value.text() != nullptr || value.sequence() != nullptr ||
         value.dict() != nullptr;
}

bool is_callable(const Value& value) {
  return value.undefined() || (value.object() != nullptr && value.object()->callable());
}

bool odd(const Value& value, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("odd", arguments);
  return equal(apply(Binary::Op::Modulo, value, Value(int64_t{2}), budget), Value(int64_t{1}), budget);
}

bool even(const Value& value, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("even", arguments);
  return equal(apply(Binary::Op::Modulo, value, Value(int64_t{2}), budget), Value(int64_t{0}), budget);
}

bool divisibleby(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [divisor] = bind("divisibleby", arguments, "num");
  const Value rest = apply(Binary::Op::Modulo, value, required("divisibleby", "num", divisor), budget);
  return equal(rest, Value(int64_t{0}), budget);
}

bool sameas(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [other] = bind("sameas", arguments, "other");
  required("sameas", "other", other);
  // Identity for containers; equal scalars of one type count as the same object.
  if (value.sequence() != nullptr) return value.sequence() == other->sequence();
  if (value.dict() != nullptr) return value.dict() == other->dict();
  if (value.undefined()) return false;  // each mention makes a new one
  return value.data().index() == other->data().index() && equal(value, *other, budget);
}

template <bool Upper>
bool cased(const Value& value, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("test", arguments);
  const std::string text = to_text(value, budget);
  bool any = false, other = false;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    any |= Upper ? is_upper(point.value) : is_lower(point.value);
    other |= Upper ? is_lower(point.value) : is_upper(point.value);
    i += point.size;
  }
  return any && !other;
}

bool names_filter(const Value& value, const Arguments& arguments, Budget&) {
  expect_no_arguments("filter", arguments);
  return value.text() != nullptr && find_filter(value.text()->bytes) != nullptr;
}

bool names_test(const Value& value, const Arguments& arguments, Budget&) {
  expect_no_arguments("test", arguments);
  return value.text() != nullptr && find_test(value.text()->bytes) != nullptr;
}

bool is_flag(const Value& value, bool flag) {
  return value.is<bool>() && *value.get<bool>() == flag;
}

constexpr std::pair<std::string_view, Test> kTests[] = {
    {"!=", related<Op::NotEqual>},
    {"<", related<Op::Less>},
    {"<=", related<Op::LessEqual>},
    {"==", related<Op::Equal>},
    {">", related<Op::Greater>},
    {">=", related<Op::GreaterEqual>},
    {"boolean", plain<[](const Value& value) { return value.is<bool>(); }>},
    {"callable", plain<is_callable>},
    {"defined", plain<[](const Value& value) { return !value.undefined(); }>},
    {"divisibleby", divisibleby},
    {"eq", related<Op::Equal>},
    {"equalto", related<Op::Equal>},
    {"escaped", plain<[](const Value& value) { return value.text() != nullptr && value.text()->markup; }>},
    {"even", even},
    {"false", plain<[](const Value& value) { return is_flag(value, false); }>},
    {"filter", names_filter},
    {"float", plain<[](const Value& value) { return value.is<double>(); }>},
    {"ge", related<Op::GreaterEqual>},
    {"greaterthan", related<Op::Greater>},
    {"gt", related<Op::Greater>},
    {"in", related<Op::In>},
    {"integer", plain<[](const Value& value) { return value.is<int64_t>(); }>},
    {"iterable", plain<is_iterable>},
    {"le", related<Op::LessEqual>},
    {"lessthan", related<Op::Less>},
    {"lower", cased<false>},
    {"lt", related<Op::Less>},
    {"mapping", plain<[](const Value& value) { return value.dict() != nullptr; }>},
    {"ne", related<Op::NotEqual>},
    {"none", plain<[](const Value& value) { return value.none(); }>},
    {"number", plain<[](const Value& value) { return as_number(value).has_value(); }>},
    {"odd", odd},
    {"sameas", sameas},
    {"sequence", plain<is_sequence>},
    {"string", plain<[](const Value& value) { return value.text() != nullptr; }>},
    {"test", names_test},
    {"true", plain<[](const Value& value) { return is_flag(value, true); }>},
    {"undefined", plain<[](const Value& value) { return value.undefined(); }>},
    {"upper", cased<true>},
};

}  // namespace

Test find_test(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTests), std::end(kTests),
                                   [&](const auto& entry) { return entry.first == name; });
  return found == std::end(kTests) ? nullptr : found->second;
}

}  // namespace quatrain::jinja
