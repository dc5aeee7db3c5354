#include "text/unicode_normal.h"

#include <utf8proc.h>

#include <cstdlib>

#include "base/error.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

// Below U+0300 every character is its own NFC (UAX 15: the first combining mark is U+0300), and below U+0080
// its own form of every kind.
bool is_stable(std::string_view text, NormalForm form) {
  const unsigned char limit = form == NormalForm::kNfc ? 0xCC : 0x80;  // 0xCC leads U+0300
  for (const char c : text)
    if (static_cast<unsigned char>(c) >= limit) return false;
  return true;
}

}  // namespace

std::string normal_form(std::string_view text, NormalForm form) {
  if (is_stable(text, form)) return std::string(text);
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::kNfc || form == NormalForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                             static_cast<utf8proc_option_t>(options));
  require(size >= 0, "Unicode normalisation of a text of {} bytes: {}", text.size(), utf8proc_errmsg(size));
  std::string out(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
  std::free(mapped);
  return out;
}

std::string lower_case(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char character = utf8_at(text, at);
    append_utf8(out, utf8proc_tolower(character.code));
    at += character.size;
  }
  return out;
}

std::string strip_accents(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char character = utf8_at(text, at);
    const utf8proc_category_t category = utf8proc_category(character.code);
    const bool mark = category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
                      category == UTF8PROC_CATEGORY_ME;
    if (!mark) out += text.substr(at, character.size);
    at += character.size;
  }
  return out;
}

}  // namespace quatrain
