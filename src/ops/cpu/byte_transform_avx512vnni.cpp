#include <immintrin.h>

#include "ops/cpu/byte_transform.h"

namespace quatrain::ops {
namespace {

constexpr int kVector = 16;  // columns of an accumulator

// g++ 12 copies and spills the accumulators of _mm512_dpbusd_epi32.
inline __attribute__((always_inline)) __m512i dot(__m512i sum, __m512i codes, __m512i bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(bytes));
  return sum;
}

inline __m512i broadcast_word(const int8_t* bytes) {
  int32_t word;
  __builtin_memcpy(&word, bytes, sizeof word);
  return _mm512_set1_epi32(word);
}

__mmask16 lanes(int64_t count) {
  return count >= kVector ? __mmask16(0xFFFF) : static_cast<__mmask16>((1u << count) - 1);
}

struct Row {
  ByteScale scale;
  __m512i sum;  // 128 times that of the integers: what unsigned codes add
  alignas(64) int8_t h[kMostByteOrder], l[kMostByteOrder];
};

void take_row(const float* x, const float* offset, int64_t order, Row& row) {
  __m512 largest = _mm512_setzero_ps(), odd = largest;
  const auto load = [&](int64_t k) {
    const __mmask16 mask = lanes(order - k);
    const __m512 v = _mm512_maskz_loadu_ps(mask, x + k);
    return offset == nullptr ? v : _mm512_sub_ps(v, _mm512_maskz_loadu_ps(mask, offset + k));
  };
  for (int64_t k = 0; k < order; k += kVector) {
    const __m512 v = load(k);
    largest = _mm512_max_ps(largest, _mm512_abs_ps(v));
    odd = _mm512_add_ps(odd, _mm512_sub_ps(v, v));  // 0, or NaN for NaN and infinity
  }
  const bool finite = _mm512_reduce_add_ps(odd) == 0;
  row.scale = byte_scale(finite ? _mm512_reduce_max_ps(largest) : __builtin_inff());
  const __m512 inverse = _mm512_set1_ps(row.scale.inverse), bound = _mm512_set1_ps(kLargestInteger);
  __m512i sum = _mm512_setzero_si512();
  for (int64_t k = 0; k < order; k += kVector) {
    __m512 v = _mm512_mul_ps(load(k), inverse);
    v = _mm512_min_ps(_mm512_max_ps(v, _mm512_sub_ps(_mm512_setzero_ps(), bound)), bound);
    const __m512i integer = _mm512_cvtps_epi32(v);
    sum = _mm512_add_epi32(sum, integer);
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(integer, _mm512_set1_epi32(128)), 8);
    _mm_store_si128(reinterpret_cast<__m128i*>(row.h + k), _mm512_cvtepi32_epi8(high));
    _mm_store_si128(reinterpret_cast<__m128i*>(row.l + k), _mm512_cvtepi32_epi8(integer));
  }
  row.sum = _mm512_set1_epi32(128 * _mm512_reduce_add_epi32(sum));
}

template <int Rows, int Vectors>
void columns(const ByteMatrix& matrix, const Row* rows, int64_t j, float* x, int64_t stride) {
  __m512i high[Rows][Vectors], low[Rows][Vectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) high[r][v] = low[r][v] = _mm512_setzero_si512();
  const uint8_t* codes = matrix.codes + 4 * j;
  for (int64_t w = 0; w < matrix.words; ++w, codes += 4 * matrix.columns) {
    __m512i code[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) code[v] = _mm512_loadu_si512(codes + 64 * v);
#pragma GCC unroll 3
    for (int r = 0; r < Rows; ++r) {
      const __m512i h = broadcast_word(rows[r].h + 4 * w), l = broadcast_word(rows[r].l + 4 * w);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) {
        high[r][v] = dot(high[r][v], code[v], h);
        low[r][v] = dot(low[r][v], code[v], l);
      }
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) {
      const int64_t at = j + v * kVector;
      const __m512i sum =
          _mm512_sub_epi32(_mm512_add_epi32(_mm512_slli_epi32(high[r][v], 8), low[r][v]), rows[r].sum);
      const __m512 step =
          _mm512_mul_ps(_mm512_loadu_ps(matrix.step + at), _mm512_set1_ps(rows[r].scale.step));
      _mm512_mask_storeu_ps(x + r * stride + at, lanes(matrix.order - at),
                            _mm512_mul_ps(_mm512_cvtepi32_ps(sum), step));
    }
}

template <int Rows>
void run(const ByteMatrix& matrix, const Row* rows, float* x, int64_t stride) {
  int64_t j = 0;
  for (; j + 4 * kVector <= matrix.columns; j += 4 * kVector) columns<Rows, 4>(matrix, rows, j, x, stride);
  for (; j < matrix.columns; j += kVector) columns<Rows, 1>(matrix, rows, j, x, stride);
}

}  // namespace

void byte_transform_avx512vnni(const ByteMatrix& matrix, const float* offset, int64_t tokens, float* x,
                               int64_t stride) {
  Row rows[kByteTokens];
  for (int64_t t = 0; t < tokens; ++t) take_row(x + t * stride, offset, matrix.order, rows[t]);
  switch (tokens) {
    case 1:
      return run<1>(matrix, rows, x, stride);
    case 2:
      return run<2>(matrix, rows, x, stride);
    default:
      return run<3>(matrix, rows, x, stride);
  }
}

}  // namespace quatrain::ops
