// What Python's string methods and jinja2's text filters share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/budget.h"

namespace quatrain::jinja {

/// Position in bytes, or npos. Linear in the worst case.
size_t find_first(std::string_view text, std::string_view wanted, size_t from, Budget& budget);
size_t find_last(std::string_view text, std::string_view wanted, Budget& budget);

/// str.split: at most `limit` cuts (negative: no limit), counted from the right with `from_right`.
std::vector<std::string_view> split_at_spaces(std::string_view text, int64_t limit, bool from_right);
std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, int64_t limit,
                                       bool from_right, Budget& budget);

/// str.replace; negative `count`: all.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to, int64_t count,
                        Budget& budget);

/// Pads to `width` code points: side -1 on the right, 1 on the left, 0 on both as str.center does.
std::string justify(std::string_view text, int64_t width, std::string_view fill, int side, Budget& budget);

/// str.capitalize(), str.title(), str.swapcase()
std::string capitalized(std::string_view text);
std::string title_cased(std::string_view text);
std::string swapped_case(std::string_view text);

}  // namespace quatrain::jinja
