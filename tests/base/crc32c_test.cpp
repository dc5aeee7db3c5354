// CRC-32C against the values of RFC 3720, B.4, and against a bit by bit division.
#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace quatrain {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

uint32_t by_bits(std::string_view text) {
  uint32_t crc = ~uint32_t{0};
  for (const char letter : text)
    for (int bit = 0; bit < 8; ++bit) {
      const bool one = ((crc ^ (static_cast<uint8_t>(letter) >> bit)) & 1) != 0;
      crc = (crc >> 1) ^ (one ? 0x82F63B78u : 0);
    }
  return ~crc;
}

TEST(Crc32c, HasThePublishedValues) {
  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8A9136AAu);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\xff'))), 0x62A8AB43u);
}

TEST(Crc32c, EveryLengthAndStartAndAnyParts) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>(i * 37 + i * i);
  const std::string_view view = text;
  for (size_t begin = 0; begin < 9; ++begin)
    for (size_t end = begin; end <= text.size(); ++end) {
      const std::string_view part = view.substr(begin, end - begin);
      EXPECT_EQ(crc32c(bytes_of(part)), by_bits(part));
      const size_t cut = part.size() / 3;
      EXPECT_EQ(crc32c(bytes_of(part.substr(cut)), crc32c(bytes_of(part.substr(0, cut)))), by_bits(part));
    }
}

}  // namespace
}  // namespace quatrain
