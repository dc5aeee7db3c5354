// FP32 vectors of the instruction set that the including file is compiled for: 16 lanes (AVX-512), 8 (AVX2
// and FMA) or 4 (any machine). Kernels are written once over these functions and compiled once a set; the
// namespace carries the set's name, so that the linker never merges code of different sets.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#define QUATRAIN_VEC_ISA avx512
#elif defined(__AVX2__)
#include <immintrin.h>
#define QUATRAIN_VEC_ISA avx2
#else
#include <cmath>

#include "base/half.h"
#define QUATRAIN_VEC_ISA generic
#endif

namespace quatrain::ops::QUATRAIN_VEC_ISA {

#if defined(__AVX512F__)

inline constexpr int kLanes = 16;
using Vec = __m512;

inline Vec zero() {
  return _mm512_setzero_ps();
}
inline Vec broadcast(float x) {
  return _mm512_set1_ps(x);
}
inline Vec load(const float* p) {
  return _mm512_loadu_ps(p);
}
inline void store(float* p, Vec x) {
  _mm512_storeu_ps(p, x);
}
inline __mmask16 first(int64_t n) {
  return static_cast<__mmask16>((1u << n) - 1);
}
/// The first n < kLanes values; the rest is 0.
inline Vec load_first(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(first(n), p);
}
inline void store_first(float* p, Vec x, int64_t n) {
  _mm512_mask_storeu_ps(p, first(n), x);
}
inline Vec add(Vec a, Vec b) {
  return _mm512_add_ps(a, b);
}
inline Vec sub(Vec a, Vec b) {
  return _mm512_sub_ps(a, b);
}
inline Vec mul(Vec a, Vec b) {
  return _mm512_mul_ps(a, b);
}
inline Vec div(Vec a, Vec b) {
  return _mm512_div_ps(a, b);
}
inline Vec min(Vec a, Vec b) {
  return _mm512_min_ps(a, b);
}
inline Vec max(Vec a, Vec b) {
  return _mm512_max_ps(a, b);
}
/// a * b + c, rounded once where the set has FMA.
inline Vec fma(Vec a, Vec b, Vec c) {
  return _mm512_fmadd_ps(a, b, c);
}
/// x where x >= bound, else 0.
inline Vec zero_below(Vec x, Vec value, Vec bound) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_GE_OQ), value);
}
inline float max_lane(Vec x) {
  return _mm512_reduce_max_ps(x);
}
/// kLanes FP16 values.
inline Vec load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
/// kLanes pairs of BF16 values: the first of each pair to a, the second to b.
inline void load_bf16_pairs(const uint16_t* p, Vec& a, Vec& b) {
  const __m512i x = _mm512_loadu_si512(p);
  a = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
  b = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
}
/// kLanes integers as FP32, exact.
inline Vec load_i16(const int16_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
}
/// (word >> shift) & mask of kLanes 32-bit words.
inline Vec load_packed(const uint8_t* p, int shift, int mask) {
  const __m512i x = _mm512_srl_epi32(_mm512_loadu_si512(p), _mm_cvtsi32_si128(shift));
  return _mm512_cvtepi32_ps(_mm512_and_si512(x, _mm512_set1_epi32(mask)));
}
/// 2^n of each lane's integral n in [-126, 127].
inline Vec power_of_two(Vec n) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
/// clamp(rint(x) + zero, 0, top) as bytes, ties to even; |x| < 2^30.
inline void store_codes(uint8_t* p, Vec x, int zero, int top) {
  __m512i code = _mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(zero));
  code = _mm512_min_epi32(_mm512_max_epi32(code, _mm512_setzero_si512()), _mm512_set1_epi32(top));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(code));
}

#elif defined(__AVX2__)

inline constexpr int kLanes = 8;
using Vec = __m256;

inline Vec zero() {
  return _mm256_setzero_ps();
}
inline Vec broadcast(float x) {
  return _mm256_set1_ps(x);
}
inline Vec load(const float* p) {
  return _mm256_loadu_ps(p);
}
inline void store(float* p, Vec x) {
  _mm256_storeu_ps(p, x);
}
inline __m256i first(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Vec load_first(const float* p, int64_t n) {
  return _mm256_maskload_ps(p, first(n));
}
inline void store_first(float* p, Vec x, int64_t n) {
  _mm256_maskstore_ps(p, first(n), x);
}
inline Vec add(Vec a, Vec b) {
  return _mm256_add_ps(a, b);
}
inline Vec sub(Vec a, Vec b) {
  return _mm256_sub_ps(a, b);
}
inline Vec mul(Vec a, Vec b) {
  return _mm256_mul_ps(a, b);
}
inline Vec div(Vec a, Vec b) {
  return _mm256_div_ps(a, b);
}
inline Vec min(Vec a, Vec b) {
  return _mm256_min_ps(a, b);
}
inline Vec max(Vec a, Vec b) {
  return _mm256_max_ps(a, b);
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline Vec zero_below(Vec x, Vec value, Vec bound) {
  return _mm256_and_ps(_mm256_cmp_ps(x, bound, _CMP_GE_OQ), value);
}
inline float max_lane(Vec x) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
inline Vec load_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void load_bf16_pairs(const uint16_t* p, Vec& a, Vec& b) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  a = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
  b = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
}
inline Vec load_i16(const int16_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline Vec load_packed(const uint8_t* p, int shift, int mask) {
  const __m256i x =
      _mm256_srl_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm_cvtsi32_si128(shift));
  return _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(mask)));
}
inline Vec power_of_two(Vec n) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline void store_codes(uint8_t* p, Vec x, int zero, int top) {
  __m256i code = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(zero));
  code = _mm256_min_epi32(_mm256_max_epi32(code, _mm256_setzero_si256()), _mm256_set1_epi32(top));
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
}

#else

inline constexpr int kLanes = 4;
struct Vec {
  float lane[4];
};

template <typename F>
inline Vec each(F f) {
  return {{f(0), f(1), f(2), f(3)}};
}
inline Vec zero() {
  return {};
}
inline Vec broadcast(float x) {
  return {{x, x, x, x}};
}
inline Vec load(const float* p) {
  return {{p[0], p[1], p[2], p[3]}};
}
inline void store(float* p, Vec x) {
  std::memcpy(p, x.lane, sizeof x.lane);
}
inline Vec load_first(const float* p, int64_t n) {
  return each([=](int i) { return i < n ? p[i] : 0.0f; });
}
inline void store_first(float* p, Vec x, int64_t n) {
  for (int i = 0; i < n; ++i) p[i] = x.lane[i];
}
inline Vec add(Vec a, Vec b) {
  return each([=](int i) { return a.lane[i] + b.lane[i]; });
}
inline Vec sub(Vec a, Vec b) {
  return each([=](int i) { return a.lane[i] - b.lane[i]; });
}
inline Vec mul(Vec a, Vec b) {
  return each([=](int i) { return a.lane[i] * b.lane[i]; });
}
inline Vec div(Vec a, Vec b) {
  return each([=](int i) { return a.lane[i] / b.lane[i]; });
}
inline Vec min(Vec a, Vec b) {
  return each([=](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Vec max(Vec a, Vec b) {
  return each([=](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return each([=](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
}
inline Vec zero_below(Vec x, Vec value, Vec bound) {
  return each([=](int i) { return x.lane[i] >= bound.lane[i] ? value.lane[i] : 0.0f; });
}
inline float max_lane(Vec x) {
  const float a = x.lane[0] > x.lane[1] ? x.lane[0] : x.lane[1];
  const float b = x.lane[2] > x.lane[3] ? x.lane[2] : x.lane[3];
  return a > b ? a : b;
}
inline Vec load_f16(const uint16_t* p) {
  return each([=](int i) { return fp16_to_float(p[i]); });
}
inline void load_bf16_pairs(const uint16_t* p, Vec& a, Vec& b) {
  a = each([=](int i) { return bf16_to_float(p[2 * i]); });
  b = each([=](int i) { return bf16_to_float(p[2 * i + 1]); });
}
inline Vec load_i16(const int16_t* p) {
  return each([=](int i) { return static_cast<float>(p[i]); });
}
inline Vec load_packed(const uint8_t* p, int shift, int mask) {
  uint32_t words[4];
  std::memcpy(words, p, sizeof words);
  return each([&](int i) { return static_cast<float>(words[i] >> shift & static_cast<uint32_t>(mask)); });
}
inline Vec power_of_two(Vec n) {
  return each([=](int i) {
    return std::bit_cast<float>(static_cast<uint32_t>(static_cast<int>(n.lane[i]) + 127) << 23);
  });
}
inline void store_codes(uint8_t* p, Vec x, int zero, int top) {
  for (int i = 0; i < kLanes; ++i) {
    const int code = static_cast<int>(std::rint(x.lane[i])) + zero;
    p[i] = static_cast<uint8_t>(code < 0 ? 0 : code > top ? top : code);
  }
}

#endif

/// One FP16 value as FP32.
inline float half_to_float(uint16_t half) {
#if defined(__F16C__)
  return _cvtsh_ss(half);
#else
  return fp16_to_float(half);
#endif
}

/// Sum of the lanes by halving: always in the same order.
inline float sum_lanes(Vec x) {
  float lane[kLanes];
  store(lane, x);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}

/// e^x: 2^n times the Taylor polynomial of degree 7 on |r| <= ln2 / 2, whose remainder is below 2^-27; 0
/// below -87.3 (where the result would be subnormal), e^88 above 88.
inline Vec exp(Vec x) {
  const Vec clamped = min(max(x, broadcast(-87.3f)), broadcast(88.0f));
  const Vec magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec n = sub(fma(clamped, broadcast(1.44269504f), magic), magic);
  Vec r = fma(n, broadcast(-0.693359375f), clamped);  // ln2 in two parts; the first has 9 bits, so n times it
  r = fma(n, broadcast(2.12194440e-4f), r);           // is exact
  Vec p = broadcast(1.0f / 5040);
  p = fma(p, r, broadcast(1.0f / 720));
  p = fma(p, r, broadcast(1.0f / 120));
  p = fma(p, r, broadcast(1.0f / 24));
  p = fma(p, r, broadcast(1.0f / 6));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  return zero_below(x, mul(p, power_of_two(n)), broadcast(-87.3f));
}

}  // namespace quatrain::ops::QUATRAIN_VEC_ISA
