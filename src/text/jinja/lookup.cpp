// Attributes, items and slices (operators.h).
#include <algorithm>

#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace quatrain::jinja {
namespace {

// What jinja2 calls the object in "'X' has no attribute".
std::string described(const Value& value) {
  if (value.none()) return "None";
  return std::string(type_name(value)) + " object";
}

Value missing_attribute(const Value& value, std::string_view name) {
  return undefined_because(fmt::format("'{}' has no attribute '{}'", described(value), name));
}

// A Python attribute: a method of a built-in type, or what an object offers.
std::optional<Value> python_attribute(const Value& value, std::string_view name) {
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__"))
    return undefined_because(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(value)));
  if (Object* object = value.object()) return object->attribute(name);
  return bound_method(value, name);
}

// The code point or item at a position, negative from the end.
std::optional<Value> at_index(const Value& value, int64_t index, Budget& budget) {
  if (const Text* text = value.text()) {
    const int64_t length = length_of(value, budget);
    if (index < 0) index += length;
    if (index < 0 || index >= length) return std::nullopt;
    const std::string_view bytes = text->bytes;
    size_t offset = 0;
    for (; index > 0; --index) offset += code_point_at(bytes, offset).size;
    return make_text(std::string(bytes.substr(offset, code_point_at(bytes, offset).size)), budget,
                     text->markup);
  }
  const Sequence& sequence = *value.sequence();
  const auto length = static_cast<int64_t>(sequence.items.size());
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  return sequence.items[static_cast<size_t>(index)];
}

bool indexable(const Value& value) {
  using Kind = Sequence::Kind;
  const Sequence* sequence = value.sequence();
  return value.text() != nullptr ||
         (sequence != nullptr &&
          (sequence->kind == Kind::List || sequence->kind == Kind::Tuple || sequence->kind == Kind::Range));
}

std::optional<int64_t> slice_part(const Value& value) {
  if (value.none()) return std::nullopt;
  require_defined(value);
  const auto integer = as_integer(value);
  require(integer.has_value(), "slice indices must be integers or None, not {}", type_name(value));
  return integer;
}

// The positions that Python's slice.indices() visits.
struct Steps {
  int64_t start, step, count;
};
Steps steps_of(const Value& start_value, const Value& stop_value, const Value& step_value, int64_t length) {
  const auto start_part = slice_part(start_value), stop_part = slice_part(stop_value),
             step_part = slice_part(step_value);
  const int64_t step = std::max(step_part.value_or(1), -INT64_MAX);
  require(step != 0, "slice step cannot be zero");
  const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? length - 1 : length;
  const auto place = [&](std::optional<int64_t> part, int64_t fallback) {
    if (!part) return fallback;
    return std::clamp(*part < 0 ? *part + length : *part, low, high);
  };
  const int64_t start = place(start_part, step < 0 ? high : low),
                stop = place(stop_part, step < 0 ? low : high);
  const int64_t distance = step < 0 ? start - stop : stop - start, stride = step < 0 ? -step : step;
  return {start, step, distance <= 0 ? 0 : (distance - 1) / stride + 1};
}

}  // namespace

Value attribute_alone(const Value& value, std::string_view name, Budget& budget) {
  budget.step();
  require_defined(value);
  return python_attribute(value, name).value_or(missing_attribute(value, name));
}

Value attribute_of(const Value& value, std::string_view name, Budget& budget) {
  budget.step();
  require_defined(value);
  if (const auto attribute = python_attribute(value, name)) return *attribute;
  if (const Dict* dict = value.dict())
    if (const Value* item = dict->find(name)) return *item;
  return missing_attribute(value, name);
}

Value item_of(const Value& value, const Value& index, Budget& budget) {
  budget.step();
  require_defined(value);
  if (const Dict* dict = value.dict()) {
    if (index.sequence() == nullptr && index.dict() == nullptr && !index.undefined() &&
        index.object() == nullptr)
      if (const Value* item = dict->find(index, budget)) return *item;
  } else if (const auto integer = as_integer(index); integer && indexable(value)) {
    if (const auto item = at_index(value, *integer, budget)) return *item;
    return undefined_because(fmt::format("{} has no element {}", described(value), *integer));
  }
  if (const Text* name = index.text()) {
    if (const auto attribute = python_attribute(value, name->bytes)) return *attribute;
    return missing_attribute(value, name->bytes);
  }
  return undefined_because(fmt::format("{} has no element {}", described(value),
                                       index.object() != nullptr ? "of this kind" : repr(index, budget)));
}

Value slice_of(const Value& value, const Value& start, const Value& stop, const Value& step, Budget& budget) {
  require_defined(value);
  require(indexable(value), "'{}' object cannot be sliced", type_name(value));
  const Steps steps = steps_of(start, stop, step, length_of(value, budget));
  const auto index = [&](int64_t i) { return static_cast<size_t>(steps.start + i * steps.step); };
  if (const Text* text = value.text()) {
    const std::string_view bytes = text->bytes;
    budget.items(bytes.size() / 8);  // offsets
    const std::vector<size_t> offsets = code_point_offsets(bytes);
    std::string out;
    for (int64_t i = 0; i < steps.count; ++i)
      out += bytes.substr(offsets[index(i)], offsets[index(i) + 1] - offsets[index(i)]);
    return make_text(std::move(out), budget, text->markup);
  }
  const Sequence& sequence = *value.sequence();
  budget.items(static_cast<uint64_t>(steps.count));
  std::vector<Value> items;
  for (int64_t i = 0; i < steps.count; ++i) items.push_back(sequence.items[index(i)]);
  return make_sequence(std::move(items), budget, sequence.kind);
}

}  // namespace quatrain::jinja
