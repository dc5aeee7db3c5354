// Methods of strings (methods.h).
#include <string.h>

#include <algorithm>
#include <utility>

#include "text/jinja/format.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/text_operations.h"
#include "text/jinja/unicode.h"

namespace quatrain::jinja {
namespace {

const std::string& bytes_of(const Value& self) {
  return self.text()->bytes;
}

Value like(const Value& self, std::string text, Budget& budget) {
  return make_text(std::move(text), budget, self.text()->markup);
}

// --- case

template <std::string (*Change)(std::string_view)>
Value changed(const Value& self, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("str method", arguments);
  budget.step(bytes_of(self).size() / 8);
  budget.text(2 * bytes_of(self).size());
  return like(self, Change(bytes_of(self)), budget);
}

// --- stripping

template <bool Left, bool Right>
Value stripped(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto [characters] = bind("strip", arguments, "chars");
  const std::string* set = nullptr;
  if (characters && !characters->none()) set = &text_argument("strip", "chars", *characters);
  budget.step((bytes_of(self).size() + (set != nullptr ? set->size() : 0)) / 8);
  return like(self, std::string(strip(bytes_of(self), Left, Right, set)), budget);
}

Value removeprefix(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto [prefix] = bind("removeprefix", arguments, "prefix");
  const std::string& drop =
      text_argument("removeprefix", "prefix", required("removeprefix", "prefix", prefix));
  return like(self, bytes_of(self).substr(bytes_of(self).starts_with(drop) ? drop.size() : 0), budget);
}

Value removesuffix(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto [suffix] = bind("removesuffix", arguments, "suffix");
  const std::string& drop =
      text_argument("removesuffix", "suffix", required("removesuffix", "suffix", suffix));
  const size_t size = bytes_of(self).size();
  return like(self, bytes_of(self).substr(0, bytes_of(self).ends_with(drop) ? size - drop.size() : size),
              budget);
}

// --- splitting and joining

std::vector<Value> as_values(const std::vector<std::string_view>& parts, bool markup, Budget& budget) {
  budget.items(parts.size());
  std::vector<Value> values;
  values.reserve(parts.size());
  for (const std::string_view part : parts) values.push_back(make_text(std::string(part), budget, markup));
  return values;
}

template <bool FromRight>
Value split_method(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto [separator, limit] = bind("split", arguments, "sep", "maxsplit");
  const int64_t most = limit ? integer_argument("split", "maxsplit", *limit) : -1;
  budget.step(bytes_of(self).size() / 8);
  budget.items(bytes_of(self).size() / 4);
  std::vector<std::string_view> parts;
  if (!separator || separator->none()) {
    parts = split_at_spaces(bytes_of(self), most, FromRight);
  } else {
    const std::string& sign = text_argument("split", "sep", *separator);
    require(!sign.empty(), "split(): empty separator");
    parts = split_at(bytes_of(self), sign, most, FromRight, budget);
  }
  return make_sequence(as_values(parts, self.text()->markup, budget), budget);
}

Value splitlines(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto [keep] = bind("splitlines", arguments, "keepends");
  budget.step(bytes_of(self).size() / 8);
  budget.items(bytes_of(self).size() / 4);
  const auto lines = split_lines(bytes_of(self), keep && truthy(*keep));
  return make_sequence(as_values(lines, self.text()->markup, budget), budget);
}

template <bool FromRight>
Value partition(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto [separator] = bind("partition", arguments, "sep");
  const std::string& sign = text_argument("partition", "sep", required("partition", "sep", separator));
  require(!sign.empty(), "partition(): empty separator");
  const std::string& text = bytes_of(self);
  const size_t found = FromRight ? find_last(text, sign, budget) : find_first(text, sign, 0, budget);
  std::vector<std::string_view> parts = {text, "", ""};
  if (found == std::string::npos && FromRight) parts = {"", "", text};
  if (found != std::string::npos) {
    const std::string_view view = text;
    parts = {view.substr(0, found), sign, view.substr(found + sign.size())};
  }
  return make_sequence(as_values(parts, self.text()->markup, budget), budget, Sequence::Kind::Tuple);
}

Value join(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto [list] = bind("join", arguments, "iterable");
  std::string out;
  bool first = true;
  size_t position = 0;
  for (const Value& item : items_of(required("join", "iterable", list), budget)) {
    require(item.text() != nullptr, "sequence item {}: expected str instance, {} found", position++,
            type_name(item));
    budget.text(out.size() / 16 + item.text()->bytes.size() + bytes_of(self).size());
    if (!std::exchange(first, false)) out += bytes_of(self);
    out += item.text()->bytes;
  }
  return like(self, std::move(out), budget);
}

Value replace(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto [from, to, count] = bind("replace", arguments, "old", "new", "count");
  return like(self,
              replace_all(bytes_of(self), text_argument("replace", "old", required("replace", "old", from)),
                          text_argument("replace", "new", required("replace", "new", to)),
                          count ? integer_argument("replace", "count", *count) : -1, budget),
              budget);
}

// --- searching

// The part of the text that start and end select (code points), and the code points before it.
struct Range {
  std::string_view text;
  int64_t offset;
};
std::optional<Range> selected(const Value& self, const std::optional<Value>& start,
                              const std::optional<Value>& end, Budget& budget) {
  const auto given = [](const std::optional<Value>& part) { return part && !part->none(); };
  if (!given(start) && !given(end)) return Range{bytes_of(self), 0};
  budget.items(bytes_of(self).size() / 8);
  const auto offsets = code_point_offsets(bytes_of(self));
  const auto length = static_cast<int64_t>(offsets.size()) - 1;
  const auto place = [&](const std::optional<Value>& part, int64_t fallback) {
    if (!given(part)) return fallback;
    const int64_t index = integer_argument("str method", "start or end", *part);
    return std::max<int64_t>(index < 0 ? index + length : index, 0);
  };
  const int64_t from = place(start, 0), to = std::min(place(end, length), length);
  if (from > to) return std::nullopt;  // not even the empty string is found there
  const size_t begin = offsets[static_cast<size_t>(from)], stop = offsets[static_cast<size_t>(to)];
  return Range{std::string_view(bytes_of(self)).substr(begin, stop - begin), from};
}

template <bool Suffix>
Value starts_or_ends(const Value& self, const Arguments& arguments, Budget& budget) {
  const std::string_view name = Suffix ? "endswith" : "startswith";
  const auto [wanted, start, end] = bind(name, arguments, "prefix", "start", "end");
  required(name, "prefix", wanted);
  const auto range = selected(self, start, end, budget);
  const auto matches = [&](const Value& candidate) {
    const std::string& text = text_argument(name, "prefix", candidate);
    budget.step(1 + text.size() / 64);
    return range && (Suffix ? range->text.ends_with(text) : range->text.starts_with(text));
  };
  const Sequence* list = wanted->sequence();
  if (list == nullptr || list->kind != Sequence::Kind::Tuple) return Value(matches(*wanted));
  return Value(std::any_of(list->items.begin(), list->items.end(), matches));
}

template <bool FromRight>
std::optional<int64_t> position_of(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto [wanted, start, end] = bind("find", arguments, "sub", "start", "end");
  const std::string& text = text_argument("find", "sub", required("find", "sub", wanted));
  const auto range = selected(self, start, end, budget);
  if (!range) return std::nullopt;
  const size_t found =
      FromRight ? find_last(range->text, text, budget) : find_first(range->text, text, 0, budget);
  if (found == std::string::npos) return std::nullopt;
  return range->offset + static_cast<int64_t>(code_point_count(range->text.substr(0, found)));
}

template <bool FromRight>
Value find(const Value& self, const Arguments& arguments, Budget& budget) {
  return Value(position_of<FromRight>(self, arguments, budget).value_or(-1));
}

template <bool FromRight>
Value index(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto found = position_of<FromRight>(self, arguments, budget);
  require(found.has_value(), "index(): substring not found");
  return Value(*found);
}

Value count(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto [wanted, start, end] = bind("count", arguments, "sub", "start", "end");
  const std::string& text = text_argument("count", "sub", required("count", "sub", wanted));
  const auto range = selected(self, start, end, budget);
  if (!range) return Value(int64_t{0});
  if (text.empty()) return Value(static_cast<int64_t>(code_point_count(range->text)) + 1);
  int64_t hits = 0;
  for (size_t at = find_first(range->text, text, 0, budget); at != std::string::npos;
       at = find_first(range->text, text, at + text.size(), budget))
    ++hits;
  return Value(hits);
}

// --- classes of characters: true when there is at least one and all belong

template <bool (*Belongs)(char32_t)>
Value all_are(const Value& self, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("str method", arguments);
  const std::string_view text = bytes_of(self);
  budget.step(text.size() / 8);
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    if (!Belongs(point.value)) return Value(false);
    i += point.size;
  }
  return Value(!text.empty());
}

bool is_alphanumeric(char32_t code) {
  return is_alpha(code) || is_digit(code);
}

Value isascii(const Value& self, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("isascii", arguments);
  budget.step(bytes_of(self).size() / 64);
  return Value(is_ascii(bytes_of(self)));
}

// isupper() and islower(): no cased character of the other case, and at least one of this.
template <bool (*Wanted)(char32_t), bool (*Other)(char32_t)>
Value cased(const Value& self, const Arguments& arguments, Budget& budget) {
  expect_no_arguments("str method", arguments);
  const std::string_view text = bytes_of(self);
  budget.step(text.size() / 8);
  bool any = false;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    if (Other(point.value)) return Value(false);
    any |= Wanted(point.value);
    i += point.size;
  }
  return Value(any);
}

// --- padding

template <int Side>  // -1 left-justified, 0 centred, 1 right-justified
Value justified(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto [width, fill] = bind("justify", arguments, "width", "fillchar");
  const int64_t wanted = integer_argument("justify", "width", required("justify", "width", width));
  const std::string pad = fill ? text_argument("justify", "fillchar", *fill) : " ";
  require(code_point_count(pad) == 1, "the fill character must be exactly one character long");
  return like(self, justify(bytes_of(self), wanted, pad, Side, budget), budget);
}

Value zfill(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto [width] = bind("zfill", arguments, "width");
  const int64_t wanted = integer_argument("zfill", "width", required("zfill", "width", width));
  const std::string& text = bytes_of(self);
  const bool sign = text.starts_with('+') || text.starts_with('-');
  const std::string digits = justify(text.substr(sign ? 1 : 0), wanted - (sign ? 1 : 0), "0", 1, budget);
  return like(self, (sign ? text.substr(0, 1) : "") + digits, budget);
}

Value format_method(const Value& self, const Arguments& arguments, Budget& budget) {
  return like(self, brace_format(bytes_of(self), arguments, budget), budget);
}

constexpr std::pair<std::string_view, Method> kMethods[] = {
    {"capitalize", changed<capitalized>},
    {"casefold", changed<to_lower>},
    {"center", justified<0>},
    {"count", count},
    {"endswith", starts_or_ends<true>},
    {"find", find<false>},
    {"format", format_method},
    {"index", index<false>},
    {"isalnum", all_are<is_alphanumeric>},
    {"isalpha", all_are<is_alpha>},
    {"isascii", isascii},
    {"isdigit", all_are<is_digit>},
    {"islower", cased<is_lower, is_upper>},
    {"isspace", all_are<is_space>},
    {"isupper", cased<is_upper, is_lower>},
    {"join", join},
    {"ljust", justified<-1>},
    {"lower", changed<to_lower>},
    {"lstrip", stripped<true, false>},
    {"partition", partition<false>},
    {"removeprefix", removeprefix},
    {"removesuffix", removesuffix},
    {"replace", replace},
    {"rfind", find<true>},
    {"rindex", index<true>},
    {"rjust", justified<1>},
    {"rpartition", partition<true>},
    {"rsplit", split_method<true>},
    {"rstrip", stripped<false, true>},
    {"split", split_method<false>},
    {"splitlines", splitlines},
    {"startswith", starts_or_ends<false>},
    {"strip", stripped<true, true>},
    {"swapcase", changed<swapped_case>},
    {"title", changed<title_cased>},
    {"upper", changed<to_upper>},
    {"zfill", zfill},
};

}  // namespace

Method find_text_method(std::string_view name) {
  const auto* found = std::find_if(std::begin(kMethods), std::end(kMethods),
                                   [&](const auto& entry) { return entry.first == name; });
  return found == std::end(kMethods) ? nullptr : found->second;
}

}  // namespace quatrain::jinja
