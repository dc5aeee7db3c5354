// Methods of dicts, lists and tuples (methods.h).
#include "text/jinja/methods.h"

namespace quatrain::jinja {
namespace {

Value dict_get(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto [key, fallback] = bind("get", arguments, "key", "default");
  const Value* found = self.dict()->find(required("get", "key", key), budget);
  return found != nullptr ? *found : fallback.value_or(Value());
}

Value dict_keys(const Value& self, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("keys", arguments);
  return make_sequence(items_of(self, budget), budget, Sequence::Kind::KeysView);
}

Value dict_values(const Value& self, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("values", arguments);
  std::vector<Value> items;
  for (const auto& entry : self.dict()->entries()) items.push_back(entry.second);
  return make_sequence(std::move(items), budget, Sequence::Kind::ValuesView);
}

Value dict_items(const Value& self, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("items", arguments);
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict()->entries())
    items.push_back(make_sequence({key, value}, budget, Sequence::Kind::Tuple));
  return make_sequence(std::move(items), budget, Sequence::Kind::ItemsView);
}

Value copy(const Value& self, const Arguments& arguments, Budget&) {
  expect_no_arguments("copy", arguments);
  return self;  // values never change, so the copy is the value
}

Value sequence_count(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto [wanted] = bind("count", arguments, "value");
  required("count", "value", wanted);
  int64_t count = 0;
  for (const Value& item : self.sequence()->items) count += equal(item, *wanted, budget) ? 1 : 0;
  return Value(count);
}

Value sequence_index(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto [wanted] = bind("index", arguments, "value");
  required("index", "value", wanted);
  const auto& items = self.sequence()->items;
  for (size_t i = 0; i < items.size(); ++i)
    if (equal(items[i], *wanted, budget)) return Value(static_cast<int64_t>(i));
  fail("{}.index(): the value is not in the {}", type_name(self), type_name(self));
}

}  // namespace

Method find_container_method(const Value& self, std::string_view name) {
  if (self.dict() != nullptr) {
    if (name == "get") return dict_get;
    if (name == "keys") return dict_keys;
    if (name == "values") return dict_values;
    if (name == "items") return dict_items;
    if (name == "copy") return copy;
  }
  if (const Sequence* sequence = self.sequence()) {
    using Kind = Sequence::Kind;
    if (sequence->kind != Kind::List && sequence->kind != Kind::Tuple && sequence->kind != Kind::Range)
      return nullptr;
    if (name == "count") return sequence_count;
    if (name == "index") return sequence_index;
    if (name == "copy" && sequence->kind == Kind::List) return copy;
  }
  return nullptr;
}

}  // namespace quatrain::jinja
