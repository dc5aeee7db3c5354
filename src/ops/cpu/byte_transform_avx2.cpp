#include <immintrin.h>

#include "ops/cpu/byte_transform.h"

namespace quatrain::ops {
namespace {

__m256i first(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// The block's values as 16-bit integers, zero up to a multiple of 4.
ByteScale take_row(const float* x, const float* offset, int64_t order, int16_t* integers) {
  const __m256 sign = _mm256_set1_ps(-0.0f), bound = _mm256_set1_ps(kLargestInteger);
  float values[kMostByteOrder + 8];
  __m256 largest = _mm256_setzero_ps(), odd = largest;
  for (int64_t k = 0; k < order; k += 8) {
    __m256 v = _mm256_maskload_ps(x + k, first(order - k));
    if (offset != nullptr) v = _mm256_sub_ps(v, _mm256_maskload_ps(offset + k, first(order - k)));
    _mm256_storeu_ps(values + k, v);
    largest = _mm256_max_ps(largest, _mm256_andnot_ps(sign, v));
    odd = _mm256_add_ps(odd, _mm256_sub_ps(v, v));  // 0, or NaN for NaN and infinity
  }
  float lanes[8], odds[8], top = 0;
  _mm256_storeu_ps(lanes, largest);
  _mm256_storeu_ps(odds, odd);
  bool finite = true;
  for (int i = 0; i < 8; ++i) {
    top = lanes[i] > top ? lanes[i] : top;
    finite = finite && odds[i] == 0;
  }
  const ByteScale scale = byte_scale(finite ? top : __builtin_inff());
  const __m256 inverse = _mm256_set1_ps(scale.inverse);
  for (int64_t k = 0; k < order; k += 8) {
    __m256 v = _mm256_mul_ps(_mm256_loadu_ps(values + k), inverse);
    v = _mm256_min_ps(_mm256_max_ps(v, _mm256_xor_ps(bound, sign)), bound);
    const __m256i integer = _mm256_cvtps_epi32(v);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(integers + k),
                     _mm_packs_epi32(_mm256_castsi256_si128(integer), _mm256_extracti128_si256(integer, 1)));
  }
  return scale;
}

}  // namespace

void byte_transform_avx2(const ByteMatrix& matrix, const float* offset, int64_t tokens, float* x,
                         int64_t stride) {
  alignas(32) int16_t integers[kByteTokens][kMostByteOrder + 8];
  ByteScale scale[kByteTokens];
  for (int64_t t = 0; t < tokens; ++t) scale[t] = take_row(x + t * stride, offset, matrix.order, integers[t]);
  const __m128i flip = _mm_set1_epi8(-128);  // unsigned codes to signed bytes
  for (int64_t j = 0; j < matrix.order; j += 8) {
    // Sums of two of a word's four products: column 0, 0, 1, 1, 2, ... of the eight.
    __m256i low[kByteTokens], high[kByteTokens];
    for (int t = 0; t < kByteTokens; ++t) low[t] = high[t] = _mm256_setzero_si256();
    const uint8_t* codes = matrix.codes + 4 * j;
    for (int64_t w = 0; w < matrix.words; ++w, codes += 4 * matrix.columns) {
      const auto* from = reinterpret_cast<const __m128i*>(codes);
      const __m256i a = _mm256_cvtepi8_epi16(_mm_xor_si128(_mm_loadu_si128(from), flip));
      const __m256i b = _mm256_cvtepi8_epi16(_mm_xor_si128(_mm_loadu_si128(from + 1), flip));
      for (int64_t t = 0; t < tokens; ++t) {
        int64_t four;
        __builtin_memcpy(&four, integers[t] + 4 * w, sizeof four);
        const __m256i value = _mm256_set1_epi64x(four);
        low[t] = _mm256_add_epi32(low[t], _mm256_madd_epi16(a, value));
        high[t] = _mm256_add_epi32(high[t], _mm256_madd_epi16(b, value));
      }
    }
    for (int64_t t = 0; t < tokens; ++t) {
      const __m256i mixed = _mm256_hadd_epi32(low[t], high[t]);  // columns 0 1 4 5 2 3 6 7
      const __m256i sum = _mm256_permute4x64_epi64(mixed, 0b11011000);
      const __m256 step = _mm256_mul_ps(_mm256_loadu_ps(matrix.step + j), _mm256_set1_ps(scale[t].step));
      _mm256_maskstore_ps(x + t * stride + j, first(matrix.order - j),
                          _mm256_mul_ps(_mm256_cvtepi32_ps(sum), step));
    }
  }
}

}  // namespace quatrain::ops
