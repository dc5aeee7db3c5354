// Filters on lists, strings and dicts as a whole (filters.h).
#include <algorithm>
#include <utility>

#include "text/jinja/filter_table.h"
#include "text/jinja/operators.h"
#include "text/jinja/selection.h"

namespace quatrain::jinja {
namespace {

using Kind = Sequence::Kind;

bool flag(const std::optional<Value>& value) {
  return value && truthy(*value);
}

Value generator(std::vector<Value> items, Budget& budget) {
  return make_sequence(std::move(items), budget, Kind::Generator);
}

Value list(const Value& value, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("list", arguments);
  return make_sequence(items_of(value, budget), budget);
}

Value first(const Value& value, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("first", arguments);
  Sequence* sequence = value.sequence();
  if (sequence != nullptr && sequence->kind == Kind::Generator && !sequence->items.empty()) {
    Value item = sequence->items.front();  // the rest stays to be read
    sequence->items.erase(sequence->items.begin());
    budget.step(sequence->items.size() / 8);
    return item;
  }
  const auto items = items_of(value, budget);
  return items.empty() ? undefined_because("No first item, sequence was empty.") : items.front();
}

Value last(const Value& value, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("last", arguments);
  require(value.sequence() == nullptr || value.sequence()->kind != Kind::Generator,
          "'generator' object is not reversible");
  const auto items = items_of(value, budget);
  return items.empty() ? undefined_because("No last item, sequence was empty.") : items.back();
}

Value join(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [separator, attribute] = bind("join", arguments, "d", "attribute");
  const std::string between = separator ? to_text(*separator, budget) : "";
  std::string out;
  bool is_first = true;
  for (const Value& item : items_of(value, budget)) {
    const std::string part =
        to_text(attribute && !attribute->none() ? attribute_path(item, *attribute, budget) : item, budget);
    budget.bytes(part.size() + between.size() + 1);
    if (!std::exchange(is_first, false)) out += between;
    out += part;
    require(out.size() <= Budget::kMaxTextBytes, "join makes a string that is too large");
  }
  return make_text(std::move(out), budget);
}

Value reverse(const Value& value, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("reverse", arguments);
  auto items = items_of(value, budget);
  std::reverse(items.begin(), items.end());
  if (value.text() == nullptr) return generator(std::move(items), budget);
  std::string out;
  for (const Value& item : items) out += item.text()->bytes;
  return make_text(std::move(out), budget, value.text()->markup);
}

Value items(const Value& value, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("items", arguments);
  if (value.undefined()) return generator({}, budget);
  require(value.dict() != nullptr, "items: can only get item pairs from a mapping, not {}", type_name(value));
  std::vector<Value> pairs;
  for (const auto& [key, item] : value.dict()->entries())
    pairs.push_back(make_sequence({key, item}, budget, Kind::Tuple));
  return generator(std::move(pairs), budget);
}

Value sort(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [reversed, case_sensitive, attribute] =
      bind("sort", arguments, "reverse", "case_sensitive", "attribute");
  auto list = items_of(value, budget);
  std::vector<Value> paths;
  if (attribute && !attribute->none()) {
    if (attribute->text() == nullptr) {
      paths.push_back(*attribute);
    } else {
      std::string_view rest = attribute->text()->bytes;
      for (bool more = true; more;) {
        const size_t comma = rest.find(',');
        paths.push_back(make_text(std::string(rest.substr(0, comma)), budget));
        more = comma != std::string_view::npos;
        if (more) rest = rest.substr(comma + 1);
      }
    }
  }
  std::vector<std::vector<Value>> keys;
  for (const Value& item : list) {
    auto& key = keys.emplace_back();
    if (paths.empty()) key.push_back(sort_key(item, flag(case_sensitive), budget));
    for (const Value& path : paths)
      key.push_back(sort_key(attribute_path(item, path, budget), flag(case_sensitive), budget));
  }
  sort_by_keys(list, keys, flag(reversed), budget);
  return make_sequence(std::move(list), budget);
}

Value dictsort(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [case_sensitive, by, reversed] = bind("dictsort", arguments, "case_sensitive", "by", "reverse");
  const std::string what = by ? text_argument("dictsort", "by", *by) : "key";
  require(what == "key" || what == "value", "dictsort: by must be 'key' or 'value'");
  require_defined(value);
  require(value.dict() != nullptr, "dictsort: a mapping is needed, not {}", type_name(value));
  std::vector<Value> pairs;
  std::vector<std::vector<Value>> keys;
  for (const auto& [key, item] : value.dict()->entries()) {
    pairs.push_back(make_sequence({key, item}, budget, Kind::Tuple));
    keys.push_back({sort_key(what == "key" ? key : item, flag(case_sensitive), budget)});
  }
  sort_by_keys(pairs, keys, flag(reversed), budget);
  return make_sequence(std::move(pairs), budget);
}

Value unique(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [case_sensitive, attribute] = bind("unique", arguments, "case_sensitive", "attribute");
  Dict seen;
  std::vector<Value> kept;
  for (const Value& item : items_of(value, budget)) {
    const Value field = attribute && !attribute->none() ? attribute_path(item, *attribute, budget) : item;
    const Value key = sort_key(field, flag(case_sensitive), budget);
    if (seen.find(key, budget) != nullptr) continue;
    seen.set(key, Value(), budget);
    kept.push_back(item);
  }
  return generator(std::move(kept), budget);
}

template <bool Largest>
Value extreme(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto slots = bind(Largest ? "max" : "min", arguments, "case_sensitive", "attribute");
  const auto &case_sensitive = slots[0], &attribute = slots[1];
  const auto list = items_of(value, budget);
  if (list.empty()) return undefined_because("No aggregated item, sequence was empty.");
  const auto key = [&](const Value& item) {
    return sort_key(attribute && !attribute->none() ? attribute_path(item, *attribute, budget) : item,
                    flag(case_sensitive), budget);
  };
  size_t best = 0;
  Value best_key = key(list[0]);
  for (size_t i = 1; i < list.size(); ++i) {
    Value candidate = key(list[i]);
    const auto relation = order(candidate, best_key, budget, Largest ? ">" : "<");
    if (relation != (Largest ? 1 : -1)) continue;
    best = i;
    best_key = std::move(candidate);
  }
  return list[best];
}

Value sum(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [attribute, start] = bind("sum", arguments, "attribute", "start");
  Value total = start.value_or(Value(int64_t{0}));
  require(total.text() == nullptr, "sum: strings are joined with |join");
  for (const Value& item : items_of(value, budget))
    total = apply(Binary::Op::Add, total,
                  attribute && !attribute->none() ? attribute_path(item, *attribute, budget) : item, budget);
  return total;
}

Value batch(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [size, fill] = bind("batch", arguments, "linecount", "fill_with");
  const int64_t count = integer_argument("batch", "linecount", required("batch", "linecount", size));
  require(count >= 1, "batch: linecount must be at least 1");
  std::vector<Value> rows, row;
  for (const Value& item : items_of(value, budget)) {
    if (static_cast<int64_t>(row.size()) == count)
      rows.push_back(make_sequence(std::exchange(row, {}), budget));
    row.push_back(item);
  }
  if (!row.empty()) {
    if (fill && !fill->none() && static_cast<int64_t>(row.size()) < count) {
      budget.items(static_cast<uint64_t>(count));
      row.resize(static_cast<size_t>(count), *fill);
    }
    rows.push_back(make_sequence(std::move(row), budget));
  }
  return generator(std::move(rows), budget);
}

Value slice(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [slices, fill] = bind("slice", arguments, "slices", "fill_with");
  const int64_t count = integer_argument("slice", "slices", required("slice", "slices", slices));
  require(count >= 1, "slice: slices must be at least 1");
  budget.items(static_cast<uint64_t>(count));
  const auto list = items_of(value, budget);
  const auto length = static_cast<int64_t>(list.size()), each = length / count, longer = length % count;
  std::vector<Value> columns;
  auto next = list.begin();
  for (int64_t i = 0; i < count; ++i) {
    const auto end = next + each + (i < longer ? 1 : 0);
    std::vector<Value> column(next, end);
    if (fill && !fill->none() && i >= longer) column.push_back(*fill);
    columns.push_back(make_sequence(std::move(column), budget));
    next = end;
  }
  return generator(std::move(columns), budget);
}

constexpr FilterEntry kFilters[] = {
    {"batch", batch},     {"dictsort", dictsort}, {"first", first},
    {"items", items},     {"join", join},         {"last", last},
    {"list", list},       {"max", extreme<true>}, {"min", extreme<false>},
    {"reverse", reverse}, {"slice", slice},       {"sort", sort},
    {"sum", sum},         {"unique", unique},
};

}  // namespace

Filter find_sequence_filter(std::string_view name) {
  return find_in(kFilters, name);
}

}  // namespace quatrain::jinja
