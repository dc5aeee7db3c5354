#include "checkpoint/gguf_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"

// Each decoder names its block's fields by byte offset, in file order. "Half h of 32 nibbles" below: byte j
// of 16 holds column j in its low and column j + 16 in its high nibble.

namespace quatrain {
namespace {

uint8_t byte_at(const std::byte* in, int64_t offset) {
  return std::to_integer<uint8_t>(in[offset]);
}

float half_at(const std::byte* in, int64_t offset) {
  return fp16_to_float(static_cast<uint16_t>(byte_at(in, offset) | byte_at(in, offset + 1) << 8));
}

uint32_t word_at(const std::byte* in, int64_t offset) {
  uint32_t word;
  std::memcpy(&word, in + offset, sizeof(word));
  return word;
}

// Calls value(column, 4-bit code) for a block of 32 nibbles.
template <typename Value>
void each_nibble(const std::byte* codes, Value value) {
  for (int j = 0; j < 16; ++j) {
    value(j, byte_at(codes, j) & 15);
    value(j + 16, byte_at(codes, j) >> 4);
  }
}

// 8 six-bit (scale, minimum) pairs in 12 bytes: Q4_K and Q5_K.
struct ScaleMin {
  int scale, minimum;
};

ScaleMin packed_scale_min(const std::byte* packed, int j) {
  if (j < 4) return {byte_at(packed, j) & 63, byte_at(packed, j + 4) & 63};
  return {(byte_at(packed, j + 4) & 15) | (byte_at(packed, j - 4) >> 6) << 4,
          (byte_at(packed, j + 4) >> 4) | (byte_at(packed, j) >> 6) << 4};
}

void put_half(std::byte* out, int64_t offset, float value) {
  const uint16_t bits = float_to_fp16(value);
  out[offset] = static_cast<std::byte>(bits & 255);
  out[offset + 1] = static_cast<std::byte>(bits >> 8);
}

// 1 / d, or 0 where d is too small to have a finite inverse: such a d is 0 in FP16 too.
float inverse(float d) {
  const float inverted = 1.0f / d;
  return std::isfinite(inverted) ? inverted : 0.0f;
}

// Writes 16 bytes of nibbles; code(column) is below 16.
template <typename Code>
void put_nibbles(std::byte* codes, Code code) {
  for (int j = 0; j < 16; ++j) codes[j] = static_cast<std::byte>(code(j) | code(j + 16) << 4);
}

}  // namespace

// d, codes[16]: d (q - 8)
void decode_q4_0(const std::byte* in, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 18, out += 32) {
    const float d = half_at(in, 0);
    each_nibble(in + 2, [&](int column, int q) { out[column] = static_cast<float>(q - 8) * d; });
  }
}

// d, m, codes[16]: d q + m
void decode_q4_1(const std::byte* in, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 20, out += 32) {
    const float d = half_at(in, 0), m = half_at(in, 2);
    each_nibble(in + 4, [&](int column, int q) { out[column] = static_cast<float>(q) * d + m; });
  }
}

// d, fifth bits[4] (bit = column), codes[16]: d (q - 16)
void decode_q5_0(const std::byte* in, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 22, out += 32) {
    const float d = half_at(in, 0);
    const uint32_t fifth = word_at(in, 2);
    each_nibble(in + 6, [&](int column, int q) {
      out[column] = static_cast<float>((q | static_cast<int>(fifth >> column & 1) << 4) - 16) * d;
    });
  }
}

// d, m, fifth bits[4], codes[16]: d q + m
void decode_q5_1(const std::byte* in, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 24, out += 32) {
    const float d = half_at(in, 0), m = half_at(in, 2);
    const uint32_t fifth = word_at(in, 4);
    each_nibble(in + 8, [&](int column, int q) {
      out[column] = static_cast<float>(q | static_cast<int>(fifth >> column & 1) << 4) * d + m;
    });
  }
}

// d, int8 codes[32]: d q
void decode_q8_0(const std::byte* in, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 34, out += 32) {
    const float d = half_at(in, 0);
    for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(static_cast<int8_t>(byte_at(in, 2 + j))) * d;
  }
}

// d, codes[16]: d times a value of the fixed non-linear table
void decode_iq4_nl(const std::byte* in, int64_t blocks, float* out) {
  static constexpr float kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};
  for (; blocks > 0; --blocks, in += 18, out += 32) {
    const float d = half_at(in, 0);
    each_nibble(in + 2, [&](int column, int q) { out[column] = d * kValues[q]; });
  }
}

// scales[16] (low nibble scale, high nibble minimum, one per 16 columns), codes[64] (2 bits: of each half of
// 128 columns, byte l of 32 holds columns l, l + 32, l + 64, l + 96), d, dmin: (d sc) q - dmin m
void decode_q2_k(const std::byte* in, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 84, out += 256) {
    const float d = half_at(in, 80), minimum = half_at(in, 82);
    for (int column = 0; column < 256; ++column) {
      const int packed = byte_at(in, column / 16);
      const int q = byte_at(in, 16 + column / 128 * 32 + column % 32) >> (column % 128 / 32 * 2) & 3;
      out[column] = d * static_cast<float>(packed & 15) * static_cast<float>(q) -
                    minimum * static_cast<float>(packed >> 4);
    }
  }
}

// third bits[32] (byte l holds columns l, l + 32, ...; set means no offset), codes[64] as Q2_K's,
// scales[12] (16 six-bit values less 32), d: (d sc) (q - 4 [third bit clear])
void decode_q3_k(const std::byte* in, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 110, out += 256) {
    const std::byte* packed = in + 96;
    const float d = half_at(in, 108);
    for (int i = 0; i < 16; ++i) {
      const int low = i < 8 ? byte_at(packed, i) & 15 : byte_at(packed, i - 8) >> 4;
      const int high = byte_at(packed, 8 + i % 4) >> (i / 4 * 2) & 3;
      const float scale = d * static_cast<float>((low | high << 4) - 32);
      for (int column = 16 * i; column < 16 * i + 16; ++column) {
        const int low_bits = byte_at(in, 32 + column / 128 * 32 + column % 32) >> (column % 128 / 32 * 2) & 3;
        const int third = byte_at(in, column % 32) >> (column / 32) & 1;
        out[column] = scale * static_cast<float>(low_bits - (third != 0 ? 0 : 4));
      }
    }
  }
}

// d, dmin, scales[12], codes[128] (of each 64 columns, byte l of 32 holds columns l and l + 32):
// (d sc) q - dmin m, one pair per 32 columns
void decode_q4_k(const std::byte* in, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 144, out += 256) {
    const float d = half_at(in, 0), dmin = half_at(in, 2);
    for (int j = 0; j < 8; ++j) {
      const auto [sc, m] = packed_scale_min(in + 4, j);
      const float scale = d * static_cast<float>(sc), minimum = dmin * static_cast<float>(m);
      for (int l = 0; l < 32; ++l) {
        const int q = byte_at(in, 16 + j / 2 * 32 + l) >> (j % 2 * 4) & 15;
        out[32 * j + l] = scale * static_cast<float>(q) - minimum;
      }
    }
  }
}

// d, dmin, scales[12], fifth bits[32] (bit j of byte l: column 32 j + l), codes[128] as Q4_K's
void decode_q5_k(const std::byte* in, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 176, out += 256) {
    const float d = half_at(in, 0), dmin = half_at(in, 2);
    for (int j = 0; j < 8; ++j) {
      const auto [sc, m] = packed_scale_min(in + 4, j);
      const float scale = d * static_cast<float>(sc), minimum = dmin * static_cast<float>(m);
      for (int l = 0; l < 32; ++l) {
        const int low = byte_at(in, 48 + j / 2 * 32 + l) >> (j % 2 * 4) & 15;
        const int fifth = byte_at(in, 16 + l) >> j & 1;
        out[32 * j + l] = scale * static_cast<float>(low | fifth << 4) - minimum;
      }
    }
  }
}

// low nibbles[128], high bits[64], int8 scales[16] (one per 16 columns), d: (d sc) (q - 32). Of each half of
// 128 columns, 64 nibble bytes: byte l holds columns l and l + 64; 32 high bytes as Q2_K's codes.
void decode_q6_k(const std::byte* in, int64_t blocks, float* out) {
  for (; blocks > 0; --blocks, in += 210, out += 256) {
    const float d = half_at(in, 208);
    for (int column = 0; column < 256; ++column) {
      const int half = column / 128, within = column % 128;
      const int low = byte_at(in, half * 64 + within % 64) >> (within / 64 * 4) & 15;
      const int high = byte_at(in, 128 + half * 32 + within % 32) >> (within / 32 * 2) & 3;
      const float scale = d * static_cast<float>(static_cast<int8_t>(byte_at(in, 192 + column / 16)));
      out[column] = scale * static_cast<float>((low | high << 4) - 32);
    }
  }
}

// The value farthest from 0 becomes code 0, that is -8 d.
void encode_q4_0(const float* in, int64_t blocks, std::byte* out) {
  for (; blocks > 0; --blocks, in += 32, out += 18) {
    const float extreme =
        *std::max_element(in, in + 32, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    const float d = extreme / -8.0f, id = inverse(d);
    put_half(out, 0, d);
    put_nibbles(out + 2, [&](int column) { return std::min(15, static_cast<int>(in[column] * id + 8.5f)); });
  }
}

// The minimum becomes code 0, the maximum code 15.
void encode_q4_1(const float* in, int64_t blocks, std::byte* out) {
  for (; blocks > 0; --blocks, in += 32, out += 20) {
    const auto [low, high] = std::minmax_element(in, in + 32);
    const float m = *low, d = (*high - m) / 15.0f, id = inverse(d);
    put_half(out, 0, d);
    put_half(out, 2, m);
    put_nibbles(out + 4,
                [&](int column) { return std::min(15, static_cast<int>((in[column] - m) * id + 0.5f)); });
  }
}

// The largest magnitude becomes 127; ties round away from zero.
void encode_q8_0(const float* in, int64_t blocks, std::byte* out) {
  for (; blocks > 0; --blocks, in += 32, out += 34) {
    float magnitude = 0;
    for (int j = 0; j < 32; ++j) magnitude = std::max(magnitude, std::fabs(in[j]));
    const float d = magnitude / 127.0f, id = inverse(d);
    put_half(out, 0, d);
    for (int j = 0; j < 32; ++j)
      out[2 + j] = static_cast<std::byte>(static_cast<int8_t>(std::round(in[j] * id)));
  }
}

}  // namespace quatrain
