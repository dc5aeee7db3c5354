// The byte alphabet of GPT-2: every byte has one printable character, so that a byte string is a text.
// Radford et al. 2019; printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quatrain {

/// The character that stands for a byte.
const std::string& byte_level_char(uint8_t byte);

/// Bytes as their characters.
std::string byte_level_encode(std::string_view bytes);

/// Characters back to bytes; nothing when one of them stands for no byte.
std::optional<std::string> byte_level_decode(std::string_view text);

}  // namespace quatrain
