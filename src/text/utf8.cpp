#include "text/utf8.h"

#include <algorithm>

namespace quatrain {
namespace {

// The longest prefix of `text` that is a character or the beginning of one (Unicode 15, table 3-7), at least
// 1 byte.
struct Subpart {
  size_t size;
  bool complete;
  int32_t code;
};

Subpart leading_subpart(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true, lead};
  size_t length = 0;
  if (lead >= 0xC2 && lead <= 0xDF) length = 2;
  if (lead >= 0xE0 && lead <= 0xEF) length = 3;
  if (lead >= 0xF0 && lead <= 0xF4) length = 4;
  if (length == 0) return {1, false, -1};
  int32_t code = lead & (0xFF >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if (i >= text.size()) return {i, false, -1};
    uint8_t low = 0x80, high = 0xBF;
    if (i == 1) {
      if (lead == 0xE0) low = 0xA0;   // overlong
      if (lead == 0xED) high = 0x9F;  // surrogates
      if (lead == 0xF0) low = 0x90;   // overlong
      if (lead == 0xF4) high = 0x8F;  // past U+10FFFF
    }
    if (byte(i) < low || byte(i) > high) return {i, false, -1};
    code = (code << 6) | (byte(i) & 0x3F);
  }
  return {length, true, code};
}

}  // namespace

Utf8Char utf8_at(std::string_view text, size_t at) {
  const Subpart part = leading_subpart(text.substr(at));
  return part.complete ? Utf8Char{part.code, part.size} : Utf8Char{-1, 1};
}

void append_utf8(std::string& out, int32_t code) {
  const auto push = [&](int32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    push(code);
  } else if (code < 0x800) {
    push(0xC0 | (code >> 6));
    push(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    push(0xE0 | (code >> 12));
    push(0x80 | ((code >> 6) & 0x3F));
    push(0x80 | (code & 0x3F));
  } else {
    push(0xF0 | (code >> 18));
    push(0x80 | ((code >> 12) & 0x3F));
    push(0x80 | ((code >> 6) & 0x3F));
    push(0x80 | (code & 0x3F));
  }
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Char character = utf8_at(text, at);
    if (character.code < 0) break;
    at += character.size;
  }
  return at;
}

size_t incomplete_utf8_suffix(std::string_view text) {
  for (size_t size = 1; size <= std::min<size_t>(3, text.size()); ++size) {
    const Subpart part = leading_subpart(text.substr(text.size() - size));
    const uint8_t lead = static_cast<uint8_t>(text[text.size() - size]);
    if (!part.complete && part.size == size && lead >= 0xC2 && lead <= 0xF4) return size;
  }
  return 0;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Subpart part = leading_subpart(text.substr(at));
    out += part.complete ? text.substr(at, part.size) : std::string_view("\xEF\xBF\xBD");
    at += part.size;
  }
  return out;
}

bool is_white_space(int32_t code) {
  return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

}  // namespace quatrain
