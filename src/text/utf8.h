// UTF-8: one code point at a time, and where a text stops being valid.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quatrain {

/// One character: its code point and the bytes it takes. An invalid byte has code -1 and size 1.
struct Utf8Char {
  int32_t code;
  size_t size;
};

/// The character at text[at] (at < text.size()). Overlong forms, surrogates and values past U+10FFFF are
/// invalid.
Utf8Char utf8_at(std::string_view text, size_t at);

void append_utf8(std::string& out, int32_t code);

/// Length of the longest valid prefix.
size_t valid_utf8_prefix(std::string_view text);

/// The bytes at the end of `text` that may yet become a character: 0 to 3.
size_t incomplete_utf8_suffix(std::string_view text);

/// Each maximal invalid part becomes U+FFFD (Unicode 15, section 3.9, "substitution of maximal subparts").
std::string replace_invalid_utf8(std::string_view text);

/// The Unicode property White_Space.
bool is_white_space(int32_t code);

}  // namespace quatrain
