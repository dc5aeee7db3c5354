#include "serve/request_fields.h"

#include <cmath>
#include <limits>

#include "serve/api_error.h"

namespace quatrain {
namespace {

// An object of many keys is slow to build in order: each is compared with all before it.
void check_key_counts(std::string_view text, std::string_view where) {
  constexpr size_t kMostKeys = 20'000;  // of the whole document: 2 * 10^8 comparisons at worst
  bool in_string = false;
  size_t keys = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\')
      ++i;
    else if (text[i] == '"')
      in_string = !in_string;
    else if (text[i] == ':' && !in_string)
      ++keys;
  }
  if (keys > kMostKeys)
    throw ApiError(400, "invalid_request_error", "invalid_json",
                   fmt::format("{}: more than {} keys", where, kMostKeys));
}

}  // namespace

OrderedJson parse_request_json(std::string_view text, std::string_view where) {
  check_key_counts(text, where);
  return parse_ordered_json(text, where);
}

const OrderedJson* RequestFields::find(std::string_view name) const {
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool RequestFields::boolean(std::string_view name, bool fallback) const {
  const OrderedJson* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail_field(path(name), "{} is not true or false", path(name));
  return value->get<bool>();
}

std::optional<int64_t> RequestFields::integer(std::string_view name, int64_t low, int64_t high) const {
  const OrderedJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  const auto number = json_whole<int64_t>(*value);
  if (!number || *number < low || *number > high)
    fail_field(path(name), "{} is not a whole number in [{}, {}]", path(name), low, high);
  return number;
}

std::optional<double> RequestFields::number(std::string_view name, double low, double high) const {
  const OrderedJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= low && number <= high))
    fail_field(path(name), "{} is not a number in [{}, {}]", path(name), low, high);
  return number;
}

std::optional<std::string> RequestFields::text(std::string_view name) const {
  const OrderedJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail_field(path(name), "{} is not a string", path(name));
  return value->get<std::string>();
}

std::vector<std::string> RequestFields::texts(std::string_view name, size_t most) const {
  const OrderedJson* value = find(name);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array() || value->size() > most)
    fail_field(path(name), "{} is not a string or a list of at most {} strings", path(name), most);
  std::vector<std::string> texts;
  for (const OrderedJson& item : *value) {
    if (!item.is_string()) fail_field(path(name), "{} holds something that is not a string", path(name));
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

std::vector<int32_t> RequestFields::ids(const OrderedJson& list, const std::string& path) {
  if (!list.is_array()) fail_field(path, "{} is not a list of token ids", path);
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const OrderedJson& item : list) {
    const auto id = item.is_number_integer() ? json_whole<int64_t>(item) : std::nullopt;
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max())
      fail_field(path, "{}[{}] is not a token id", path, ids.size());
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

void RequestFields::refuse(std::initializer_list<std::string_view> names) const {
  for (const std::string_view name : names) {
    const OrderedJson* value = find(name);
    if (value != nullptr && *value != false && *value != OrderedJson::array())
      fail_unsupported(path(name), "{} is not supported", path(name));
  }
}

}  // namespace quatrain
