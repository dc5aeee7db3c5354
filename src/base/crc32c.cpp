#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace quatrain {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // bits reversed

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

uint32_t by_table(const uint8_t* bytes, size_t count, uint32_t crc) {
  for (size_t i = 0; i < count; ++i) crc = (crc >> 8) ^ kTable[(crc ^ bytes[i]) & 255];
  return crc;
}

#if defined(__x86_64__)
#define QUATRAIN_HARDWARE_CRC __attribute__((target("sse4.2")))
bool has_instruction() {
  return __builtin_cpu_supports("sse4.2");
}
QUATRAIN_HARDWARE_CRC uint32_t add_word(uint32_t crc, uint64_t word) {
  return static_cast<uint32_t>(_mm_crc32_u64(crc, word));
}
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#define QUATRAIN_HARDWARE_CRC
bool has_instruction() {
  return true;
}
uint32_t add_word(uint32_t crc, uint64_t word) {
  return __crc32cd(crc, word);
}
#endif

#ifdef QUATRAIN_HARDWARE_CRC
QUATRAIN_HARDWARE_CRC uint32_t by_instruction(const uint8_t* bytes, size_t count, uint32_t crc) {
  size_t i = 0;
  for (uint64_t word = 0; i + sizeof word <= count; i += sizeof word) {
    std::memcpy(&word, bytes + i, sizeof word);
    crc = add_word(crc, word);
  }
  return by_table(bytes + i, count - i, crc);
}
#endif

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
#ifdef QUATRAIN_HARDWARE_CRC
  static const bool hardware = has_instruction();
  if (hardware) return ~by_instruction(data, bytes.size(), ~crc);
#endif
  return ~by_table(data, bytes.size(), ~crc);
}

}  // namespace quatrain
