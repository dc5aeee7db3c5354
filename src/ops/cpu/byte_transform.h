// A block product x <- (x - c) A whose matrix is bytes times one power of two a column, in place. Rows become
// 16-bit integers 256 h + l with signed bytes h and l (rounding 2^-16 of a block's largest value), so that
// the sums are exact and the same on every instruction set, bit for bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace quatrain::ops {

inline constexpr int64_t kByteColumns = 16;     // columns are padded to a multiple of it
inline constexpr int64_t kMostByteOrder = 512;  // 512 * 32,512 * 127 < 2^31
inline constexpr int64_t kByteTokens = 3;       // rows of one call

/// A[k, j] = step[j] (codes[k / 4][j][k % 4] - 128); padding holds the code 128.
struct ByteMatrix {
  int64_t order = 0;
  int64_t columns = 0;  // padded
  int64_t words = 0;    // of four rows k
  const uint8_t* codes = nullptr;
  const float* step = nullptr;  // [columns]
};

/// How a block of a row becomes integers: rint(x / step), and 1 / step. NaN where the block holds a NaN or an
/// infinity, which its results then are.
struct ByteScale {
  float step, inverse;
};
inline constexpr float kLargestInteger = 32512;  // 256 * 127: h fits a signed byte
inline ByteScale byte_scale(float largest) {
  if (!(largest <= std::numeric_limits<float>::max())) {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    return {nan, nan};
  }
  const float step = largest == 0 ? 1.0f : std::fmax(largest / kLargestInteger, 0x1p-120f);
  return {step, 1.0f / step};
}

/// Transforms one block of `tokens` rows, at most kByteTokens, `stride` floats apart; `offset`: c [order], or
/// nullptr for zero.
using ByteKernel = void (*)(const ByteMatrix& matrix, const float* offset, int64_t tokens, float* x,
                            int64_t stride);

void byte_transform_generic(const ByteMatrix&, const float*, int64_t, float*, int64_t);
void byte_transform_avx2(const ByteMatrix&, const float*, int64_t, float*, int64_t);
void byte_transform_avx512vnni(const ByteMatrix&, const float*, int64_t, float*, int64_t);

}  // namespace quatrain::ops
