// CRC-32C (Castagnoli), as iSCSI (RFC 3720) and file systems use it: processors have an instruction for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace quatrain {

/// The checksum of the bytes of `crc` followed by `bytes`; 0 is that of no bytes.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace quatrain
