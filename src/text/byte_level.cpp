#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace quatrain {
namespace {

struct Alphabet {
  std::array<std::string, 256> chars;
  std::array<int16_t, 324> bytes;  // by code point; the last character is U+0143

  Alphabet() {
    bytes.fill(-1);
    int32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const int32_t code = printable ? byte : next++;
      append_utf8(chars[byte], code);
      bytes[code] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

const std::string& byte_level_char(uint8_t byte) {
  return alphabet().chars[byte];
}

std::string byte_level_encode(std::string_view bytes) {
  const Alphabet& table = alphabet();
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (const char byte : bytes) out += table.chars[static_cast<uint8_t>(byte)];
  return out;
}

std::optional<std::string> byte_level_decode(std::string_view text) {
  const Alphabet& table = alphabet();
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char character = utf8_at(text, at);
    if (character.code < 0 || character.code >= static_cast<int32_t>(table.bytes.size()) ||
        table.bytes[character.code] < 0)
      return std::nullopt;
    out.push_back(static_cast<char>(table.bytes[character.code]));
    at += character.size;
  }
  return out;
}

}  // namespace quatrain
