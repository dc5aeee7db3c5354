#include "text/jinja/value.h"

#include <string.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "text/jinja/arguments.h"
#include "text/jinja/unicode.h"

namespace quatrain::jinja {
namespace {

template <typename... Cases>
struct Overload : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overload(Cases...) -> Overload<Cases...>;

// A text under which Python's equal keys are equal: 1, 1.0 and True are one key.
std::string hash_key(const Value& key, Budget& budget) {
  budget.step();
  if (const Text* text = key.text()) return "s" + text->bytes;
  if (const auto integer = as_integer(key)) return "i" + std::to_string(*integer);
  if (const double* number = key.get<double>()) {
    if (std::floor(*number) == *number && std::abs(*number) < 0x1p63)
      return "i" + std::to_string(static_cast<int64_t>(*number));
    return "f" + float_repr(*number);
  }
  if (key.none()) return "n";
  if (const Sequence* tuple = key.sequence(); tuple != nullptr && tuple->kind == Sequence::Kind::Tuple) {
    std::string out = "t";
    for (const Value& item : tuple->items) {
      const std::string part = hash_key(item, budget);
      budget.text(part.size());
      out += std::to_string(part.size()) + ":" + part;
    }
    return out;
  }
  require_defined(key);
  fail("unhashable type: '{}'", type_name(key));
}

bool equal_items(const Sequence& left, const Sequence& right, Budget& budget) {
  if (left.items.size() != right.items.size()) return false;
  for (size_t i = 0; i < left.items.size(); ++i)
    if (!equal(left.items[i], right.items[i], budget)) return false;
  return true;
}

bool equal_dicts(const Dict& left, const Dict& right, Budget& budget) {
  if (left.entries().size() != right.entries().size()) return false;
  for (const auto& [key, value] : left.entries()) {
    const Value* other = right.find(key, budget);
    if (other == nullptr || !equal(value, *other, budget)) return false;
  }
  return true;
}

int sign_of(auto left, auto right) {
  return left < right ? -1 : left > right ? 1 : 0;
}

void append_quoted(std::string_view text, std::string& out) {
  const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  out += quote;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    const char32_t c = point.value;
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out += text.substr(i, point.size);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
    i += point.size;
  }
  out += quote;
}

void append_repr(const Value& value, std::string& out, Budget& budget);

void append_items(const std::vector<Value>& items, std::string& out, Budget& budget) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(items[i], out, budget);
  }
}

void append_sequence(const Sequence& sequence, std::string& out, Budget& budget) {
  using Kind = Sequence::Kind;
  const auto wrap = [&](std::string_view open, std::string_view close) {
    out += open;
    append_items(sequence.items, out, budget);
    out += close;
  };
  switch (sequence.kind) {
    case Kind::List:
      return wrap("[", "]");
    case Kind::Tuple:
      return wrap("(", sequence.items.size() == 1 ? ",)" : ")");
    case Kind::KeysView:
      return wrap("dict_keys([", "])");
    case Kind::ValuesView:
      return wrap("dict_values([", "])");
    case Kind::ItemsView:
      return wrap("dict_items([", "])");
    case Kind::Range:
    case Kind::Generator:
      fail("a {} cannot be printed: make it a list with |list",
           type_name(Value(std::make_shared<Sequence>(sequence))));
  }
}

void append_repr(const Value& value, std::string& out, Budget& budget) {
  budget.step();
  const size_t before = out.size();
  std::visit(Overload{
                 [&](const Undefined&) { out += "Undefined"; },
                 [&](const None&) { out += "None"; },
                 [&](bool flag) { out += flag ? "True" : "False"; },
                 [&](int64_t number) { out += std::to_string(number); },
                 [&](double number) { out += float_repr(number); },
                 [&](const TextPtr& text) {
                   budget.text(text->bytes.size());
                   if (text->markup) out += "Markup(";
                   append_quoted(text->bytes, out);
                   if (text->markup) out += ")";
                 },
                 [&](const SequencePtr& sequence) { append_sequence(*sequence, out, budget); },
                 [&](const DictPtr& dict) {
                   out += "{";
                   for (const auto& [key, item] : dict->entries()) {
                     if (&key != &dict->entries().front().first) out += ", ";
                     append_repr(key, out, budget);
                     out += ": ";
                     append_repr(item, out, budget);
                   }
                   out += "}";
                 },
                 [&](const ObjectPtr& object) { fail("a {} cannot be printed", object->type_name()); },
             },
             value.data());
  if (value.sequence() == nullptr && value.dict() == nullptr) budget.bytes(out.size() - before);
  require(out.size() <= Budget::kMaxTextBytes, "the template creates a string of more than {} MiB",
          Budget::kMaxTextBytes >> 20);
}

}  // namespace

Value Object::call(const Arguments&, Budget&) {
  fail("'{}' object is not callable", type_name());
}

std::optional<Value> Object::attribute(std::string_view) {
  return std::nullopt;
}

const Value* Dict::find(std::string_view key) const {
  const auto found = index_.find("s" + std::string(key));
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  if (const Text* text = key.text()) return find(text->bytes);
  const auto found = index_.find(hash_key(key, budget));
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

void Dict::set(const Value& key, Value value, Budget& budget) {
  put(hash_key(key, budget), key, std::move(value), budget);
}

void Dict::set(std::string_view key, Value value, Budget& budget) {
  put("s" + std::string(key), Value(std::string(key)), std::move(value), budget);
}

void Dict::put(std::string hash_key, const Value& key, Value value, Budget& budget) {
  depth_ = std::max({depth_, 1 + depth_of(key), 1 + depth_of(value)});
  require(depth_ <= kMaxValueDepth, "a value is nested deeper than {} levels", kMaxValueDepth);
  budget.bytes(3 * Budget::kBytesPerItem + hash_key.size());
  const auto [place, added] = index_.emplace(std::move(hash_key), entries_.size());
  if (added)
    entries_.emplace_back(key, std::move(value));
  else
    entries_[place->second].second = std::move(value);
}

Value undefined_because(std::string message) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(message))});
}

Value make_text(std::string text, Budget& budget, bool markup) {
  budget.text(text.size());
  return Value(std::move(text), markup);
}

Value make_sequence(std::vector<Value> items, Budget& budget, Sequence::Kind kind) {
  budget.items(items.size());
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = kind;
  for (const Value& item : items) sequence->depth = std::max(sequence->depth, 1 + depth_of(item));
  require(sequence->depth <= kMaxValueDepth, "a value is nested deeper than {} levels", kMaxValueDepth);
  sequence->items = std::move(items);
  return Value(std::move(sequence));
}

std::string_view type_name(const Value& value) {
  return std::visit(Overload{
                        [](const Undefined&) -> std::string_view { return "Undefined"; },
                        [](const None&) -> std::string_view { return "NoneType"; },
                        [](bool) -> std::string_view { return "bool"; },
                        [](int64_t) -> std::string_view { return "int"; },
                        [](double) -> std::string_view { return "float"; },
                        [](const TextPtr&) -> std::string_view { return "str"; },
                        [](const SequencePtr& sequence) -> std::string_view {
                          switch (sequence->kind) {
                            case Sequence::Kind::List:
                              return "list";
                            case Sequence::Kind::Tuple:
                              return "tuple";
                            case Sequence::Kind::Range:
                              return "range";
                            case Sequence::Kind::Generator:
                              return "generator";
                            case Sequence::Kind::KeysView:
                              return "dict_keys";
                            case Sequence::Kind::ValuesView:
                              return "dict_values";
                            case Sequence::Kind::ItemsView:
                              return "dict_items";
                          }
                          return "sequence";
                        },
                        [](const DictPtr&) -> std::string_view { return "dict"; },
                        [](const ObjectPtr& object) -> std::string_view { return object->type_name(); },
                    },
                    value.data());
}

int depth_of(const Value& value) {
  if (const Sequence* sequence = value.sequence()) return sequence->depth;
  if (const Dict* dict = value.dict()) return dict->depth();
  if (const Object* object = value.object()) return object->depth();
  return 0;
}

std::optional<int64_t> as_integer(const Value& value) {
  if (const int64_t* integer = value.get<int64_t>()) return *integer;
  if (const bool* flag = value.get<bool>()) return *flag ? 1 : 0;
  return std::nullopt;
}

std::optional<double> as_number(const Value& value) {
  if (const auto integer = as_integer(value)) return static_cast<double>(*integer);
  if (const double* number = value.get<double>()) return *number;
  return std::nullopt;
}

bool truthy(const Value& value) {
  return std::visit(Overload{
                        [](const Undefined&) { return false; },
                        [](const None&) { return false; },
                        [](bool flag) { return flag; },
                        [](int64_t number) { return number != 0; },
                        [](double number) { return number != 0; },
                        [](const TextPtr& text) { return !text->bytes.empty(); },
                        [](const SequencePtr& sequence) {
                          return sequence->kind == Sequence::Kind::Generator || !sequence->items.empty();
                        },
                        [](const DictPtr& dict) { return !dict->entries().empty(); },
                        [](const ObjectPtr&) { return true; },
                    },
                    value.data());
}

bool equal(const Value& left, const Value& right, Budget& budget) {
  budget.step();
  if (const auto a = as_integer(left), b = as_integer(right); a && b) return *a == *b;
  if (as_number(left) && as_number(right)) return order(left, right, budget) == 0;
  if (const Text* a = left.text(), *b = right.text(); a != nullptr && b != nullptr) {
    budget.step(std::min(a->bytes.size(), b->bytes.size()) / 64);
    return a->bytes == b->bytes;
  }
  if (const Sequence* a = left.sequence(), *b = right.sequence(); a != nullptr && b != nullptr) {
    using Kind = Sequence::Kind;
    if (a == b) return true;
    if (a->kind != b->kind || a->kind == Kind::Generator || a->kind == Kind::ValuesView) return false;
    return equal_items(*a, *b, budget);
  }
  if (const Dict* a = left.dict(), *b = right.dict(); a != nullptr && b != nullptr)
    return a == b || equal_dicts(*a, *b, budget);
  if (left.object() != nullptr) return left.object() == right.object();
  return (left.none() && right.none()) || (left.undefined() && right.undefined());
}

std::optional<int> order(const Value& left, const Value& right, Budget& budget, std::string_view sign) {
  budget.step();
  require_defined(left);
  require_defined(right);
  if (const auto a = as_integer(left), b = as_integer(right); a && b) return sign_of(*a, *b);
  if (as_number(left) && as_number(right)) {
    // long double holds every int64 and every double, so mixed comparisons are exact as Python's are.
    const auto widen = [](const Value& value) {
      const auto integer = as_integer(value);
      return integer ? static_cast<long double>(*integer) : static_cast<long double>(*value.get<double>());
    };
    const long double a = widen(left), b = widen(right);
    if (std::isnan(a) || std::isnan(b)) return std::nullopt;
    return sign_of(a, b);
  }
  if (const Text* a = left.text(), *b = right.text(); a != nullptr && b != nullptr) {
    budget.step(std::min(a->bytes.size(), b->bytes.size()) / 64);
    return sign_of(a->bytes.compare(b->bytes), 0);  // byte order of UTF-8 is code point order
  }
  const Sequence *a = left.sequence(), *b = right.sequence();
  if (a != nullptr && b != nullptr && a->kind == b->kind &&
      (a->kind == Sequence::Kind::List || a->kind == Sequence::Kind::Tuple)) {
    for (size_t i = 0; i < std::min(a->items.size(), b->items.size()); ++i)
      if (!equal(a->items[i], b->items[i], budget)) return order(a->items[i], b->items[i], budget, sign);
    return sign_of(a->items.size(), b->items.size());
  }
  fail("'{}' not supported between instances of '{}' and '{}'", sign, type_name(left), type_name(right));
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  if (const Text* text = container.text()) {
    require_defined(item);
    require(item.text() != nullptr, "'in <string>' requires string as left operand, not {}", type_name(item));
    const std::string& needle = item.text()->bytes;
    budget.step((text->bytes.size() + needle.size()) / 64);
    // memmem is linear in the worst case, std::string::find is not.
    return memmem(text->bytes.data(), text->bytes.size(), needle.data(), needle.size()) != nullptr;
  }
  if (const Dict* dict = container.dict()) return dict->find(item, budget) != nullptr;
  if (const Sequence* sequence = container.sequence();
      sequence != nullptr && sequence->kind != Sequence::Kind::Generator) {
    for (const Value& candidate : sequence->items)
      if (equal(candidate, item, budget)) return true;
    return false;
  }
  require(container.undefined() || container.sequence() != nullptr, "argument of type '{}' is not iterable",
          type_name(container));
  for (const Value& candidate : items_of(container, budget))
    if (equal(candidate, item, budget)) return true;
  return false;
}

std::vector<Value> items_of(const Value& value, Budget& budget) {
  if (value.undefined()) return {};
  std::vector<Value> items;
  if (const Text* text = value.text()) {
    const std::string_view bytes = text->bytes;
    budget.items(2 * bytes.size());
    for (size_t i = 0; i < bytes.size();) {
      const size_t size = code_point_at(bytes, i).size;
      items.push_back(Value(std::string(bytes.substr(i, size)), text->markup));
      i += size;
    }
  } else if (Sequence* sequence = value.sequence()) {
    budget.items(sequence->items.size());
    if (sequence->kind == Sequence::Kind::Generator) {
      if (!sequence->spent) items = std::move(sequence->items);
      sequence->items.clear();
      sequence->spent = true;
    } else {
      items = sequence->items;
    }
  } else if (const Dict* dict = value.dict()) {
    budget.items(dict->entries().size());
    for (const auto& entry : dict->entries()) items.push_back(entry.first);
  } else {
    fail("'{}' object is not iterable", type_name(value));
  }
  budget.step(items.size() / 8);
  return items;
}

std::shared_ptr<const std::vector<Value>> shared_items_of(const Value& value, Budget& budget) {
  if (const Sequence* sequence = value.sequence();
      sequence != nullptr && sequence->kind != Sequence::Kind::Generator)
    return {std::get<SequencePtr>(value.data()), &sequence->items};
  return std::make_shared<const std::vector<Value>>(items_of(value, budget));
}

int64_t length_of(const Value& value, Budget& budget) {
  if (value.undefined()) return 0;
  if (const Text* text = value.text()) {
    budget.step(text->bytes.size() / 64);
    return static_cast<int64_t>(code_point_count(text->bytes));
  }
  if (const Sequence* sequence = value.sequence();
      sequence != nullptr && sequence->kind != Sequence::Kind::Generator)
    return static_cast<int64_t>(sequence->items.size());
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->entries().size());
  if (Object* object = value.object())
    if (const auto length = object->attribute("length"))
      if (const auto integer = as_integer(*length)) return *integer;
  fail("object of type '{}' has no len()", type_name(value));
}

std::string to_text(const Value& value, Budget& budget) {
  if (const Text* text = value.text()) return text->bytes;
  if (value.undefined()) return {};
  return repr(value, budget);
}

std::string repr(const Value& value, Budget& budget) {
  std::string out;
  append_repr(value, out, budget);
  return out;
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // Shortest digits that read back the same, as d.ddde+XX; laid out again by Python's rule: exponent form
  // below 1e-4 and from 1e16.
  std::string digits;
  int exponent = 0;
  for (int precision = 0; precision <= 17; ++precision) {
    const std::string scientific = fmt::format("{:.{}e}", value, precision);
    if (precision < 17 && std::strtod(scientific.c_str(), nullptr) != value) continue;
    const size_t mark = scientific.find('e');
    exponent = std::atoi(scientific.c_str() + mark + 1);
    for (const char c : scientific.substr(0, mark))
      if (c >= '0' && c <= '9') digits += c;
    break;
  }
  const std::string sign = std::signbit(value) ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    std::string out = sign + digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto point = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= point) return sign + digits + std::string(point - digits.size(), '0') + ".0";
  return sign + digits.substr(0, point) + "." + digits.substr(point);
}

void require_defined(const Value& value) {
  if (const Undefined* undefined = value.get<Undefined>()) fail("{}", *undefined->message);
}

}  // namespace quatrain::jinja
