// Code points of UTF-8 strings, as Python's str has them. A byte that is no part of valid UTF-8 counts as one
// code point of its own and is kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quatrain::jinja {

struct CodePoint {
  char32_t value;  // 0xDC80 + k for a stray byte 0x80 + k (Python's surrogateescape)
  size_t size;     // bytes
};

/// The code point at `position`, which is inside the text.
CodePoint code_point_at(std::string_view text, size_t position);
void append_code_point(std::string& out, char32_t code);
/// Number of code points.
size_t code_point_count(std::string_view text);
/// Byte offsets where code points begin, and the end.
std::vector<size_t> code_point_offsets(std::string_view text);
bool is_ascii(std::string_view text);

/// str.isspace() of one character.
bool is_space(char32_t code);
bool is_alpha(char32_t code);
bool is_digit(char32_t code);
bool is_upper(char32_t code);
bool is_lower(char32_t code);
/// Whether repr() shows the character itself.
bool is_printable(char32_t code);
/// Simple case mapping (tables of utf8proc), with the one common expansion: upper-case sharp s is "SS".
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);

/// str.strip(): whitespace, or where `characters` is given any of those code points.
std::string_view strip(std::string_view text, bool left, bool right, const std::string* characters = nullptr);
/// str.splitlines()
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);

}  // namespace quatrain::jinja
