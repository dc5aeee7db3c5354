// The safetensors format: 8 bytes of header length, a JSON header, then the tensors' bytes without gaps.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "checkpoint/tensor_source.h"

namespace quatrain {

/// One tensor of a safetensors file: what it is, and its bytes within the file.
struct SafetensorsEntry {
  TensorInfo info;
  std::span<const std::byte> bytes;
};

/// The tensors of one file by offset, checked in full: header length, JSON, types, and that offsets follow
/// each other without gap or overlap, end with the file, and agree with type and shape. `where` begins every
/// error. The spans point into `file`.
std::vector<SafetensorsEntry> parse_safetensors(std::span<const std::byte> file, std::string_view where);

/// The file name of each tensor, from the text of model.safetensors.index.json. Names that leave the
/// directory are refused.
std::map<std::string, std::string> parse_safetensors_index(std::string_view text, std::string_view where);

/// The CRC-32C of each tensor from the same text: metadata.crc32c, which only this program writes; empty
/// where it is not there. One that is no number below 2^32, or of a tensor that weight_map lacks, is an
/// error.
std::map<std::string, uint32_t> parse_safetensors_checksums(std::string_view text, std::string_view where);

}  // namespace quatrain
