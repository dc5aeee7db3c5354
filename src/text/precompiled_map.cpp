#include "text/precompiled_map.h"

#include <cstring>

#include "base/error.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

// darts-clone's unit: a leaf flag, an offset with an optional shift of 8, and a label; a leaf holds a value
// instead.
bool has_leaf(uint32_t unit) {
  return ((unit >> 8) & 1) != 0;
}
uint32_t value(uint32_t unit) {
  return unit & 0x7FFFFFFF;
}
uint32_t label(uint32_t unit) {
  return unit & 0x800000FF;
}
uint32_t offset(uint32_t unit) {
  return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

PrecompiledMap::PrecompiledMap(std::string_view blob, std::string_view where) {
  uint32_t bytes = 0;
  require(blob.size() > sizeof bytes, "{}: precompiled_charsmap has only {} bytes", where, blob.size());
  std::memcpy(&bytes, blob.data(), sizeof bytes);
  blob.remove_prefix(sizeof bytes);
  require(bytes >= 4 && bytes % 4 == 0 && bytes < blob.size(),
          "{}: precompiled_charsmap announces a trie of {} bytes and has {} left", where, bytes, blob.size());
  units_.resize(bytes / 4);
  std::memcpy(units_.data(), blob.data(), bytes);
  replacements_ = blob.substr(bytes);
  require(replacements_.back() == '\0', "{}: precompiled_charsmap ends within a replacement", where);
  require(valid_utf8_prefix(replacements_) == replacements_.size(),
          "{}: precompiled_charsmap has a replacement that is not UTF-8", where);
}

std::string PrecompiledMap::apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    size_t matched = 0, replacement = 0;
    size_t node = offset(units_[0]);
    for (size_t i = at; i < text.size(); ++i) {
      const uint8_t byte = static_cast<uint8_t>(text[i]);
      node ^= byte;
      if (node >= units_.size() || label(units_[node]) != byte) break;
      const uint32_t unit = units_[node];
      node ^= offset(unit);
      if (!has_leaf(unit)) continue;
      if (node >= units_.size() || value(units_[node]) >= replacements_.size()) break;
      matched = i + 1 - at;
      replacement = value(units_[node]);
    }
    // Only whole characters are replaced, so that the result stays UTF-8.
    const bool whole = matched > 0 && valid_utf8_prefix(text.substr(at, matched)) == matched &&
                       (replacement == 0 || replacements_[replacement - 1] == '\0');
    if (whole) {
      out += replacements_.c_str() + replacement;
      at += matched;
    } else {
      const size_t size = utf8_at(text, at).size;
      out += text.substr(at, size);
      at += size;
    }
  }
  return out;
}

std::string base64_decode(std::string_view text, std::string_view where) {
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const size_t digit = kBase64.find(c);
    require(digit != std::string_view::npos, "{}: not base64: character with code {}", where,
            static_cast<int>(static_cast<unsigned char>(c)));
    bits = (bits << 6) | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out.push_back(static_cast<char>((bits >> count) & 0xFF));
    }
  }
  return out;
}

std::string base64_encode(std::string_view bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j)
      bits = (bits << 8) | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j) out += i + j <= bytes.size() ? kBase64[(bits >> (18 - 6 * j)) & 63] : '=';
  }
  return out;
}

}  // namespace quatrain
