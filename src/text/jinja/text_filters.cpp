// Filters that give text (filters.h).
#include "text/jinja/filter_table.h"
#include "text/jinja/format.h"
#include "text/jinja/json_value.h"
#include "text/jinja/operators.h"
#include "text/jinja/text_operations.h"
#include "text/jinja/unicode.h"

namespace quatrain::jinja {
namespace {

bool is_markup(const Value& value) {
  return value.text() != nullptr && value.text()->markup;
}

template <std::string (*Change)(std::string_view)>
Value changed(const Value& value, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("filter", arguments);
  const std::string text = to_text(value, budget);
  budget.step(text.size() / 8);
  budget.text(2 * text.size());
  return make_text(Change(text), budget, is_markup(value));
}

// jinja2's title: words begin after - ( { [ < and blanks; str.title() has another rule.
std::string titled(std::string_view text) {
  std::string out;
  bool start = true;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    const std::string_view character = text.substr(i, point.size);
    out += start ? to_upper(character) : to_lower(character);
    start = is_space(point.value) ||
            (point.value < 0x80 && std::string_view("-({[<").find(character) != std::string_view::npos);
    i += point.size;
  }
  return out;
}

Value trim(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [characters] = bind("trim", arguments, "chars");
  const std::string text = to_text(value, budget);
  const std::string* set = nullptr;
  if (characters && !characters->none()) set = &text_argument("trim", "chars", *characters);
  budget.step((text.size() + (set != nullptr ? set->size() : 0)) / 8);
  return make_text(std::string(strip(text, true, true, set)), budget, is_markup(value));
}

Value replace(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [from, to, count] = bind("replace", arguments, "old", "new", "count");
  const std::string text = to_text(value, budget),
                    old_text = to_text(required("replace", "old", from), budget),
                    new_text = to_text(required("replace", "new", to), budget);
  const int64_t most = count && !count->none() ? integer_argument("replace", "count", *count) : -1;
  return make_text(replace_all(text, old_text, new_text, most, budget), budget);
}

Value string(const Value& value, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("string", arguments);
  return value.text() != nullptr ? value : make_text(to_text(value, budget), budget);
}

Value safe(const Value& value, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("safe", arguments);
  return make_text(to_text(value, budget), budget, true);
}

Value escape(const Value& value, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("escape", arguments);
  return escape_markup(value, budget);
}

Value force_escape(const Value& value, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("forceescape", arguments);
  return escape_markup(make_text(to_text(value, budget), budget), budget);
}

Value indent(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [width, first, blank] = bind("indent", arguments, "width", "first", "blank");
  require_defined(value);
  require(value.text() != nullptr, "indent: a string is needed, not {}", type_name(value));
  std::string margin = "    ";
  if (width && width->text() != nullptr)
    margin = width->text()->bytes;
  else if (width)
    margin = justify("", integer_argument("indent", "width", *width), " ", 1, budget);
  const bool blank_too = blank && truthy(*blank);
  const std::string text = value.text()->bytes + "\n";  // a line end at the end makes an empty last line
  std::string out = first && truthy(*first) ? margin : "";
  bool is_first = true;
  budget.step(text.size() / 8);
  for (const std::string_view line : split_lines(text)) {
    budget.bytes(line.size() + margin.size() + 1);
    if (!is_first) out += '\n';
    if (!is_first && (blank_too || !line.empty())) out += margin;
    out += line;
    is_first = false;
    require(out.size() <= Budget::kMaxTextBytes, "indent makes a string that is too large");
  }
  return make_text(std::move(out), budget, is_markup(value));
}

Value center(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [width] = bind("center", arguments, "width");
  return make_text(justify(to_text(value, budget), width ? integer_argument("center", "width", *width) : 80,
                           " ", 0, budget),
                   budget, is_markup(value));
}

Value truncate(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [length, kill, ending, leeway] =
      bind("truncate", arguments, "length", "killwords", "end", "leeway");
  const std::string text = to_text(value, budget), end = ending ? to_text(*ending, budget) : "...";
  const int64_t most = length ? integer_argument("truncate", "length", *length) : 255;
  const int64_t slack = leeway && !leeway->none() ? integer_argument("truncate", "leeway", *leeway) : 5;
  const auto end_length = static_cast<int64_t>(code_point_count(end));
  require(most >= end_length, "truncate: length must be at least that of the end, {}", end_length);
  require(slack >= 0, "truncate: leeway must not be negative");
  budget.items(text.size() / 8);
  const auto offsets = code_point_offsets(text);
  if (static_cast<int64_t>(offsets.size()) - 1 - slack <= most) return make_text(text, budget);
  std::string kept = text.substr(0, offsets[static_cast<size_t>(most - end_length)]);
  if (!(kill && truthy(*kill))) kept = kept.substr(0, kept.rfind(' '));
  return make_text(kept + end, budget);
}

Value wordcount(const Value& value, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("wordcount", arguments);
  const std::string text = to_text(value, budget);
  budget.step(text.size() / 8);
  int64_t words = 0;
  bool inside = false;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    const bool part = point.value == '_' || is_alpha(point.value) || is_digit(point.value);
    words += part && !inside ? 1 : 0;
    inside = part;
    i += point.size;
  }
  return Value(words);
}

Value format(const Value& value, const Arguments& arguments, Budget& budget) {
  require(arguments.positional.empty() || arguments.named.empty(),
          "format: positional and keyword arguments cannot be mixed");
  Value values = make_sequence(arguments.positional, budget, Sequence::Kind::Tuple);
  if (!arguments.named.empty()) {
    auto dict = std::make_shared<Dict>();
    for (const auto& [name, item] : arguments.named) dict->set(name, item, budget);
    values = Value(std::move(dict));
  }
  return make_text(percent_format(to_text(value, budget), values, budget), budget, is_markup(value));
}

// As transformers redefines it: json.dumps without HTML escapes.
Value tojson(const Value& value, const Arguments& arguments, Budget& budget) {
  const auto [ensure_ascii, indentation, separators, sort_keys] =
      bind("tojson", arguments, "ensure_ascii", "indent", "separators", "sort_keys");
  JsonStyle style;
  style.ensure_ascii = ensure_ascii && truthy(*ensure_ascii);
  style.sort_keys = sort_keys && truthy(*sort_keys);
  if (indentation && !indentation->none()) {
    style.indent = indentation->text() != nullptr
                       ? indentation->text()->bytes
                       : justify("", integer_argument("tojson", "indent", *indentation), " ", 1, budget);
    style.item_separator = std::string(1, ',');
  }
  if (separators && !separators->none()) {
    const auto pair = items_of(*separators, budget);
    require(pair.size() == 2, "tojson: separators must be a pair (item separator, key separator)");
    style.item_separator = text_argument("tojson", "separators", pair[0]);
    style.key_separator = text_argument("tojson", "separators", pair[1]);
  }
  return make_text(to_json(value, style, budget), budget);
}

constexpr FilterEntry kFilters[] = {
    {"capitalize", changed<capitalized>},
    {"center", center},
    {"e", escape},
    {"escape", escape},
    {"forceescape", force_escape},
    {"format", format},
    {"indent", indent},
    {"lower", changed<to_lower>},
    {"replace", replace},
    {"safe", safe},
    {"string", string},
    {"title", changed<titled>},
    {"tojson", tojson},
    {"trim", trim},
    {"truncate", truncate},
    {"upper", changed<to_upper>},
    {"wordcount", wordcount},
};

}  // namespace

Filter find_text_filter(std::string_view name) {
  return find_in(kFilters, name);
}

}  // namespace quatrain::jinja
