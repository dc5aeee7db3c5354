// One block of SHA-256: in plain C++, and by the instructions that many processors have for it.
#pragma once

#include <cstdint>

namespace quatrain {

/// Moves the eight words of `state` past 64 bytes.
void sha256_block(uint32_t* state, const uint8_t* data);
void sha256_block_plain(uint32_t* state, const uint8_t* data);

}  // namespace quatrain
