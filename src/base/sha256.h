// SHA-256 (FIPS 180-4): fingerprints of texts, models and artifacts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quatrain {

class Sha256 {
 public:
  void update(const void* data, size_t size);
  /// The digest as 64 hex digits; the object is spent afterwards.
  std::string hex();

 private:
  void block(const uint8_t* data);
  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_{};
  size_t pending_size_ = 0;
  uint64_t total_ = 0;
};

std::string sha256_hex(std::string_view bytes);

}  // namespace quatrain
