#include "text/jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>

namespace quatrain::jinja {
namespace {

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool continuation(std::string_view text, size_t position) {
  return position < text.size() && (static_cast<uint8_t>(text[position]) & 0xC0) == 0x80;
}

}  // namespace

CodePoint code_point_at(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[position + i])); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const CodePoint stray{0xDC00 + first, 1};
  if (first < 0xC2 || first > 0xF4 || !continuation(text, position + 1)) return stray;
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (!continuation(text, position + 2)) return stray;
  if (first < 0xF0) {
    const char32_t code = (first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    return code < 0x800 || (code >= 0xD800 && code < 0xE000) ? stray : CodePoint{code, 3};
  }
  if (!continuation(text, position + 3)) return stray;
  const char32_t code =
      (first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  return code < 0x10000 || code > 0x10FFFF ? stray : CodePoint{code, 4};
}

void append_code_point(std::string& out, char32_t code) {
  if (code >= 0xDC80 && code <= 0xDCFF) {
    out += static_cast<char>(code - 0xDC00);
  } else if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

size_t code_point_count(std::string_view text) {
  size_t count = 0;
  for (size_t i = 0; i < text.size(); i += code_point_at(text, i).size) ++count;
  return count;
}

std::vector<size_t> code_point_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size(); i += code_point_at(text, i).size) offsets.push_back(i);
  offsets.push_back(text.size());
  return offsets;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

bool is_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_digit(char32_t code) {
  return code < 0x80 ? code >= '0' && code <= '9' : category(code) == UTF8PROC_CATEGORY_ND;
}

bool is_alpha(char32_t code) {
  if (code < 0x80) return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
  return category(code) >= UTF8PROC_CATEGORY_LU && category(code) <= UTF8PROC_CATEGORY_LO;
}

bool is_upper(char32_t code) {
  return code < 0x80 ? code >= 'A' && code <= 'Z' : category(code) == UTF8PROC_CATEGORY_LU;
}

bool is_lower(char32_t code) {
  return code < 0x80 ? code >= 'a' && code <= 'z' : category(code) == UTF8PROC_CATEGORY_LL;
}

bool is_printable(char32_t code) {
  if (code < 0x80) return code >= 0x20 && code != 0x7F;
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
      return false;
    default:
      return true;
  }
}

std::string to_upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    i += point.size;
    if (point.value < 0x80) {
      out += static_cast<char>(is_lower(point.value) ? point.value - 32 : point.value);
    } else if (point.value == 0xDF) {
      out += "SS";
    } else {
      append_code_point(out,
                        static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(point.value))));
    }
  }
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    i += point.size;
    if (point.value < 0x80) {
      out += static_cast<char>(is_upper(point.value) ? point.value + 32 : point.value);
    } else {
      append_code_point(out,
                        static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(point.value))));
    }
  }
  return out;
}

std::string_view strip(std::string_view text, bool left, bool right, const std::string* characters) {
  std::vector<char32_t> set;
  if (characters != nullptr)
    for (size_t i = 0; i < characters->size();) {
      const CodePoint point = code_point_at(*characters, i);
      set.push_back(point.value);
      i += point.size;
    }
  std::sort(set.begin(), set.end());
  const auto dropped = [&](char32_t code) {
    return characters == nullptr ? is_space(code) : std::binary_search(set.begin(), set.end(), code);
  };
  size_t begin = 0, end = text.size();
  if (left)
    while (begin < end) {
      const CodePoint point = code_point_at(text, begin);
      if (!dropped(point.value)) break;
      begin += point.size;
    }
  if (right)
    while (end > begin) {
      size_t start = end - 1;  // walk back to the lead byte whose code point ends here
      while (start > begin && end - start < 4 && continuation(text, start)) --start;
      if (start + code_point_at(text, start).size != end) start = end - 1;
      if (!dropped(code_point_at(text, start).value)) break;
      end = start;
    }
  return text.substr(begin, end - begin);
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    const char32_t c = point.value;
    size_t next = i + point.size;
    const bool breaks =
        (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (breaks) {
      if (c == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.push_back(text.substr(begin, (keep_ends ? next : i) - begin));
      begin = next;
    }
    i = next;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

}  // namespace quatrain::jinja
