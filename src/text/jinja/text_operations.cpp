#include "text/jinja/text_operations.h"

#include <string.h>

#include <algorithm>

#include "text/jinja/unicode.h"

namespace quatrain::jinja {

size_t find_first(std::string_view text, std::string_view wanted, size_t from, Budget& budget) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  const size_t position = found == nullptr
                              ? std::string_view::npos
                              : static_cast<size_t>(static_cast<const char*>(found) - text.data());
  budget.step(1 + (std::min(position, text.size()) - from + wanted.size()) / 64);
  return position;
}

size_t find_last(std::string_view text, std::string_view wanted, Budget& budget) {
  if (wanted.size() > text.size()) return std::string_view::npos;
  // Quadratic at worst, so that is what it costs.
  budget.step(1 + text.size() / 64 * (1 + wanted.size() / 64));
  return text.rfind(wanted);
}

std::vector<std::string_view> split_at_spaces(std::string_view text, int64_t limit, bool from_right) {
  std::vector<std::string_view> words;
  size_t begin = 0;
  bool inside = false;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    if (is_space(point.value)) {
      if (inside) words.push_back(text.substr(begin, i - begin));
      inside = false;
    } else if (!inside) {
      begin = i;
      inside = true;
    }
    i += point.size;
  }
  if (inside) words.push_back(text.substr(begin));
  if (limit < 0 || words.size() <= static_cast<size_t>(limit)) return words;
  // The words that are not cut off stay together, with the blanks on their far side.
  const auto cuts = static_cast<size_t>(limit);
  if (from_right) {
    const std::string_view last = words[words.size() - cuts - 1];
    words.erase(words.begin(), words.end() - static_cast<ptrdiff_t>(cuts));
    words.insert(words.begin(), text.substr(0, static_cast<size_t>(last.data() - text.data()) + last.size()));
  } else {
    const std::string_view next = words[cuts];
    words.resize(cuts);
    words.push_back(text.substr(static_cast<size_t>(next.data() - text.data())));
  }
  return words;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, int64_t limit,
                                       bool from_right, Budget& budget) {
  std::vector<std::string_view> parts;
  for (; limit != 0; --limit) {
    const size_t found =
        from_right ? find_last(text, separator, budget) : find_first(text, separator, 0, budget);
    if (found == std::string_view::npos) break;
    const std::string_view left = text.substr(0, found), right = text.substr(found + separator.size());
    parts.push_back(from_right ? right : left);
    text = from_right ? left : right;
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to, int64_t count,
                        Budget& budget) {
  std::string out;
  const auto insert = [&](std::string_view piece) {
    budget.bytes(piece.size() + to.size() + 1);
    require(out.size() + piece.size() + to.size() <= Budget::kMaxTextBytes,
            "the template creates a string of more than {} MiB", Budget::kMaxTextBytes >> 20);
    out += piece;
    out += to;
  };
  size_t position = 0;
  if (from.empty()) {  // between all code points, and at both ends
    while (count != 0) {
      insert({});
      --count;
      if (position >= text.size()) return out;
      const size_t size = code_point_at(text, position).size;
      out += text.substr(position, size);
      position += size;
    }
  } else {
    for (; count != 0; --count) {
      const size_t found = find_first(text, from, position, budget);
      if (found == std::string_view::npos) break;
      insert(text.substr(position, found - position));
      position = found + from.size();
    }
  }
  budget.text(out.size() + text.size() - position);
  out += text.substr(position);
  return out;
}

std::string justify(std::string_view text, int64_t width, std::string_view fill, int side, Budget& budget) {
  budget.step(text.size() / 64);
  const auto length = static_cast<int64_t>(code_point_count(text));
  if (width <= length) return std::string(text);
  const int64_t pad = width - length;
  require(pad <= static_cast<int64_t>(Budget::kMaxTextBytes), "a width of {} is too large", width);
  budget.text(text.size() + static_cast<uint64_t>(pad) * fill.size());
  // CPython's str.center puts the odd one out on the left where both the padding and the width are odd.
  const int64_t left = side < 0 ? 0 : side > 0 ? pad : pad / 2 + (pad & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < pad; ++i) out += fill;
  return out;
}

std::string capitalized(std::string_view text) {
  if (text.empty()) return {};
  const size_t first = code_point_at(text, 0).size;
  return to_upper(text.substr(0, first)) + to_lower(text.substr(first));
}

std::string title_cased(std::string_view text) {
  std::string out;
  bool inside = false;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    const std::string_view character = text.substr(i, point.size);
    out += inside ? to_lower(character) : to_upper(character);
    inside = is_upper(point.value) || is_lower(point.value);
    i += point.size;
  }
  return out;
}

std::string swapped_case(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    const std::string_view character = text.substr(i, point.size);
    out += is_upper(point.value) ? to_lower(character) : to_upper(character);
    i += point.size;
  }
  return out;
}

}  // namespace quatrain::jinja
