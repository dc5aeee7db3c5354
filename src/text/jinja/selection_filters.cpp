// Filters that apply another filter or a test to every item (filters.h).
#include <utility>

#include "text/jinja/filter_table.h"
#include "text/jinja/operators.h"
#include "text/jinja/selection.h"
#include "text/jinja/tests.h"

namespace quatrain::jinja {
namespace {

using Kind = Sequence::Kind;

// The arguments behind the first `count`.
Arguments behind(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<ptrdiff_t>(count));
  return rest;
}

Value map(const Value& value, const Arguments& arguments, Budget& budget) {
  std::vector<Value> out;
  if (arguments.positional.empty()) {
    std::optional<Value> attribute, fallback;
    for (const auto& [name, argument] : arguments.named) {
      require(name == "attribute" || name == "default", "map: unexpected keyword argument '{}'", name);
      (name == "attribute" ? attribute : fallback) = argument;
    }
    require(attribute.has_value(), "map requires a filter argument");
    for (const Value& item : items_of(value, budget)) {
      Value field = attribute_path(item, *attribute, budget);
      out.push_back(field.undefined() && fallback ? *fallback : std::move(field));
    }
    return make_sequence(std::move(out), budget, Kind::Generator);
  }
  const std::string& name = text_argument("map", "filter", arguments.positional[0]);
  const Filter filter = find_filter(name);
  require(filter != nullptr, "the filter '{}' is not known", name);
  const Arguments rest = behind(arguments, 1);
  const Budget::Level level(budget);  // map can name map
  for (const Value& item : items_of(value, budget)) {
    budget.step();
    out.push_back(filter(item, rest, budget));
  }
  return make_sequence(std::move(out), budget, Kind::Generator);
}

template <bool Keep, bool ByAttribute>
Value choose(const Value& value, const Arguments& arguments, Budget& budget) {
  constexpr size_t kTest = ByAttribute ? 1 : 0;
  require(arguments.positional.size() >= kTest, "missing the name of an attribute");
  Test test = nullptr;
  Arguments rest;
  if (arguments.positional.size() > kTest) {
    const std::string& name = text_argument("select", "test", arguments.positional[kTest]);
    test = find_test(name);
    require(test != nullptr, "the test '{}' is not known", name);
    rest = behind(arguments, kTest + 1);
  }
  std::vector<Value> kept;
  for (const Value& item : items_of(value, budget)) {
    budget.step();
    Value subject = item;
    if constexpr (ByAttribute) subject = attribute_path(item, arguments.positional[0], budget);
    if ((test != nullptr ? test(subject, rest, budget) : truthy(subject)) == Keep) kept.push_back(item);
  }
  return make_sequence(std::move(kept), budget, Kind::Generator);
}

// A list of (grouper, list) with the groups in the order of their keys.
Value groupby(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto slots = bind("groupby", arguments, "attribute", "default", "case_sensitive");
  const auto &attribute = slots[0], &fallback = slots[1], &case_sensitive = slots[2];
  required("groupby", "attribute", attribute);
  const bool exact = case_sensitive && truthy(*case_sensitive);
  const auto field = [&](const Value& item) {
    const Value found = attribute_path(item, *attribute, budget);
    return found.undefined() && fallback ? *fallback : found;
  };
  auto items = items_of(value, budget);
  std::vector<std::vector<Value>> keys;
  for (const Value& item : items) keys.push_back({sort_key(field(item), exact, budget)});
  sort_by_keys(items, keys, false, budget);
  std::vector<Value> groups, group;
  const auto close = [&] {
    if (group.empty()) return;
    const Value name = field(group[0]);
    groups.push_back(
        make_sequence({name, make_sequence(std::exchange(group, {}), budget)}, budget, Kind::Tuple));
  };
  for (const Value& item : items) {
    if (!group.empty() &&
        !equal(sort_key(field(group[0]), exact, budget), sort_key(field(item), exact, budget), budget))
      close();
    group.push_back(item);
  }
  close();
  return make_sequence(std::move(groups), budget);
}

Value attr(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [name] = bind("attr", arguments, "name");
  return attribute_alone(value, text_argument("attr", "name", required("attr", "name", name)), budget);
}

constexpr FilterEntry kFilters[] = {
    {"attr", attr},
    {"groupby", groupby},
    {"map", map},
    {"reject", choose<false, false>},
    {"rejectattr", choose<false, true>},
    {"select", choose<true, false>},
    {"selectattr", choose<true, true>},
};

}  // namespace

Filter find_selection_filter(std::string_view name) {
  return find_in(kFilters, name);
}

}  // namespace quatrain::jinja
