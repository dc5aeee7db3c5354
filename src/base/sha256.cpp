#include "base/sha256.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/sha256_block.h"

namespace quatrain {

void Sha256::block(const uint8_t* data) {
  sha256_block(state_.data(), data);
}

void Sha256::update(const void* data, size_t size) {
  const auto* next = static_cast<const uint8_t*>(data);
  total_ += size;
  if (pending_size_ > 0) {
    const size_t take = std::min(size, pending_.size() - pending_size_);
    std::memcpy(pending_.data() + pending_size_, next, take);
    pending_size_ += take, next += take, size -= take;
    if (pending_size_ < pending_.size()) return;
    block(pending_.data());
    pending_size_ = 0;
  }
  for (; size >= 64; next += 64, size -= 64) block(next);
  if (size > 0) std::memcpy(pending_.data(), next, size);
  pending_size_ = size;
}

std::string Sha256::hex() {
  const uint64_t bits = total_ * 8;
  const uint8_t one = 0x80, zero = 0;
  update(&one, 1);
  while (pending_size_ != 56) update(&zero, 1);
  std::array<uint8_t, 8> length;
  for (int i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  update(length.data(), length.size());
  std::string text;
  for (const uint32_t word : state_) text += fmt::format("{:08x}", word);
  return text;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes.data(), bytes.size());
  return hash.hex();
}

}  // namespace quatrain
