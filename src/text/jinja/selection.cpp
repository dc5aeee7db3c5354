#include "text/jinja/selection.h"

#include <algorithm>
#include <numeric>

#include "text/jinja/numbers.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace quatrain::jinja {

Value attribute_path(const Value& item, const Value& path, Budget& budget) {
  if (as_integer(path)) return item_of(item, path, budget);
  std::string_view rest = text_argument("filter", "attribute", path);
  Value value = item;
  for (bool more = true; more;) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    const bool index = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    value = index ? item_of(value, Value(*parse_integer(part, 10)), budget)
                  : item_of(value, make_text(std::string(part), budget), budget);
    more = dot != std::string_view::npos;
    if (more) rest = rest.substr(dot + 1);
  }
  return value;
}

Value sort_key(const Value& value, bool case_sensitive, Budget& budget) {
  if (case_sensitive || value.text() == nullptr) return value;
  budget.step(value.text()->bytes.size() / 8);
  return make_text(to_lower(value.text()->bytes), budget);
}

void sort_by_keys(std::vector<Value>& items, const std::vector<std::vector<Value>>& keys, bool reverse,
                  Budget& budget) {
  std::vector<size_t> places(items.size());
  std::iota(places.begin(), places.end(), size_t{0});
  const auto before = [&](size_t a, size_t b) {
    for (size_t part = 0; part < keys[a].size(); ++part)
      if (!equal(keys[a][part], keys[b][part], budget))
        return order(keys[a][part], keys[b][part], budget).value_or(0) < 0;
    return false;
  };
  // Python's reverse keeps equal items in their order.
  std::stable_sort(places.begin(), places.end(),
                   [&](size_t a, size_t b) { return reverse ? before(b, a) : before(a, b); });
  std::vector<Value> sorted;
  sorted.reserve(items.size());
  for (const size_t place : places) sorted.push_back(items[place]);
  items = std::move(sorted);
}

}  // namespace quatrain::jinja
