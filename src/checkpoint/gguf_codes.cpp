#include "checkpoint/gguf_codes.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/half.h"

namespace quatrain {
namespace {

constexpr int64_t kGgufBlock = 32;
constexpr float kLeastNormal = 0x1p-14f;  // below, FP16 has fewer than 11 bits

}  // namespace

// GGUF's Q4_0 (FP16 scale, then column j low and column j + 16 high in byte j, code + 8) and Q8_0 (FP16
// scale, then 32 signed bytes).
StoredCodes decode_gguf_codes(const TensorSource& source, const TensorInfo& tensor, int64_t begin,
                              int64_t count) {
  StoredCodes out{.bits = tensor.type == "Q4_0" ? 4 : 8,
                  .rows = count,
                  .columns = tensor.columns(),
                  .group = kGgufBlock,
                  .codes = {},
                  .scale = {}};
  const size_t bytes = out.bits == 4 ? 18 : 34;
  const int64_t row_blocks = out.columns / kGgufBlock, blocks = count * row_blocks;
  const std::byte* in = source.raw(tensor).data() + static_cast<size_t>(begin * row_blocks) * bytes;
  out.codes.resize(static_cast<size_t>(count * out.columns));
  out.scale.resize(static_cast<size_t>(blocks));
  for (int64_t b = 0; b < blocks; ++b, in += bytes) {
    uint16_t half;
    std::memcpy(&half, in, sizeof half);
    out.scale[static_cast<size_t>(b)] = fp16_to_float(half);
    int8_t* codes = out.codes.data() + b * kGgufBlock;
    if (out.bits == 8) {
      std::memcpy(codes, in + 2, kGgufBlock);
      continue;
    }
    for (int64_t j = 0; j < kGgufBlock / 2; ++j) {
      const auto byte = std::to_integer<int>(in[2 + j]);
      codes[j] = static_cast<int8_t>((byte & 15) - 8);
      codes[j + kGgufBlock / 2] = static_cast<int8_t>((byte >> 4) - 8);
    }
  }
  return out;
}

std::vector<std::byte> encode_gguf_codes(const StoredCodes& codes, std::string_view type,
                                         std::string_view where) {
  const bool nibbles = type == "Q4_0";
  require((nibbles && codes.bits == 4) || type == "Q8_0", "{}: {}-bit codes are no {}", where, codes.bits,
          type);
  require(codes.columns % kGgufBlock == 0 && codes.group % kGgufBlock == 0,
          "{}: {} columns in groups of {} are no blocks of 32", where, codes.columns, codes.group);
  const int64_t row_blocks = codes.columns / kGgufBlock, blocks = codes.rows * row_blocks;
  const size_t bytes = nibbles ? 18 : 34;
  std::vector<std::byte> out(static_cast<size_t>(blocks) * bytes);
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t row = b / row_blocks, column = b % row_blocks * kGgufBlock;
    const int64_t group = codes.group == 0 ? 0 : column / codes.group;
    const float scale = codes.scale[static_cast<size_t>(row * codes.groups() + group)];
    const uint16_t half = float_to_fp16(scale);
    require(scale == 0 || (std::fabs(scale) >= kLeastNormal && std::isfinite(fp16_to_float(half))),
            "{}: row {} has the scale {}, which FP16 does not hold; use --dtype f16 or f32", where, row,
            scale);
    std::byte* to = out.data() + static_cast<size_t>(b) * bytes;
    std::memcpy(to, &half, sizeof half);
    const int8_t* from = codes.codes.data() + row * codes.columns + column;
    if (!nibbles) {
      std::memcpy(to + 2, from, kGgufBlock);
      continue;
    }
    for (int64_t j = 0; j < kGgufBlock / 2; ++j)
      to[2 + j] = static_cast<std::byte>((from[j] + 8) | ((from[j + kGgufBlock / 2] + 8) << 4));
  }
  return out;
}

}  // namespace quatrain
