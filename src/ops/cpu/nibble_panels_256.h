// The 256-bit kernels, AVX2 and AVX-VNNI: one ymm register is 8 rows, 4 columns, a quarter of a panel.
// Included by one source file an instruction set; everything here is local to that file, so that no code of
// one set is linked into another.
#pragma once

#include <immintrin.h>

#include "ops/cpu/nibble_panels.h"

namespace quatrain::ops {
namespace {

constexpr int kQuarterRows = 8;
constexpr int kQuarterBytes = 32;
constexpr int kTokens = 4;  // 2 quarters x 4 tokens: 8 of the 16 registers accumulate

inline __attribute__((always_inline)) __m256i broadcast(const uint8_t* codes) {
  int word;
  __builtin_memcpy(&word, codes, sizeof word);
  return _mm256_set1_epi32(word);
}

alignas(64) constexpr uint8_t kZeros[kHalfBytes] = {};

// Halves that are computed together: both for one or two tokens, which the memory bounds; one at a time for
// more, which the registers bound.
template <int T>
constexpr int kHalves = T <= 2 ? 2 : 1;

template <typename Dot, int T>
void halves_of_tokens(const NibblePanels& w, int64_t panel, int first_half, const NibbleTokens& x,
                      int64_t token, const NibbleResults& out) {
  constexpr int H = kHalves<T>;
  constexpr int Q = 2 * H;
  const uint8_t* dense = w.dense + panel * w.total_steps() * kStepBytes + first_half * kHalfBytes;
  const uint8_t* residual = w.residual + w.residual_offset[panel];
  const uint8_t* flags = w.flags + panel * w.units;
  const uint8_t* codes = x.codes + token * x.stride;
  const int64_t first_row = panel * kPanelRows + first_half * kHalfRows;
  const bool sums_only = out.sums != nullptr;
  __m256 total[T][Q];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) total[t][q] = _mm256_setzero_ps();

  for (int64_t g = 0, u = 0; g < w.groups; ++g) {
    const int64_t at = (panel * w.groups + g) * kPanelRows + first_half * kHalfRows;
    __m256i acc[T][Q];  // starts at -z S and ends as P - z S; at 0 where P alone is asked for
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) {
      __m256i sums = _mm256_setzero_si256();
      if (!sums_only && w.wide)
        sums = _mm256_load_si256(reinterpret_cast<const __m256i*>(w.wide_sums + at + q * kQuarterRows));
      if (!sums_only && !w.wide)
        sums = _mm256_cvtepi16_epi32(
            _mm_load_si128(reinterpret_cast<const __m128i*>(w.sums + at + q * kQuarterRows)));
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t)
        acc[t][q] = _mm256_mullo_epi32(_mm256_set1_epi32(x.negative_zero[(token + t) * w.groups + g]), sums);
    }
    const int64_t end = u + w.units_per_group < w.units ? u + w.units_per_group : w.units;
    for (; u < end; ++u) {
      const int64_t steps = u + 1 < w.units ? w.steps : w.last_steps;
      const uint8_t* lo[2] = {kZeros, kZeros};
      int64_t advance[2] = {0, 0};
      for (int half = 0; half < 2; ++half) {
        if ((flags[u] >> half & 1) == 0) continue;
        lo[half] = residual;
        advance[half] = kHalfBytes;
        residual += steps * kHalfBytes;
      }
      const bool has_lo = (flags[u] >> first_half & ((1 << H) - 1)) != 0;
      for (int64_t s = 0; s < steps; ++s, dense += kStepBytes, codes += kStepColumns) {
#pragma GCC unroll 4
        for (int q = 0; q < Q; ++q) {
          const __m256i hi = _mm256_load_si256(
              reinterpret_cast<const __m256i*>(dense + q / 2 * kHalfBytes + q % 2 * kQuarterBytes));
          if (!has_lo) {
            const typename Dot::Weights weights(hi);
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t)
              weights.add(acc[t][q], broadcast(codes + t * x.stride), broadcast(codes + t * x.stride + 4));
          } else {
            const int half = first_half + q / 2;
            const typename Dot::WeightsWithLo weights(
                hi, _mm256_load_si256(reinterpret_cast<const __m256i*>(lo[half] + s * advance[half] +
                                                                       q % 2 * kQuarterBytes)));
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t)
              weights.add(acc[t][q], broadcast(codes + t * x.stride), broadcast(codes + t * x.stride + 4));
          }
        }
      }
    }

    if (sums_only) {
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
        for (int q = 0; q < Q; ++q) {
          alignas(32) int32_t sums[kQuarterRows];
          _mm256_store_si256(reinterpret_cast<__m256i*>(sums), acc[t][q]);
          const int64_t row = first_row + q * kQuarterRows;
          for (int64_t r = 0; r < kQuarterRows && row + r < w.rows; ++r)
            out.sums[((token + t) * w.rows + row + r) * w.groups + g] = sums[r];
        }
      continue;
    }
    const uint16_t* scales = w.group_scale + (panel * w.scale_groups + g / w.groups_per_scale) * kPanelRows +
                             first_half * kHalfRows;
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) {
      __m256 group_scale = _mm256_setzero_ps();
      if (w.scale_groups > 0)
        group_scale =
            _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(scales + q * kQuarterRows)));
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        __m256 term = _mm256_cvtepi32_ps(acc[t][q]);
        if (w.scale_groups > 0) term = _mm256_mul_ps(term, group_scale);
        total[t][q] = _mm256_fmadd_ps(_mm256_set1_ps(x.scale[(token + t) * w.groups + g]), term, total[t][q]);
      }
    }
  }
  if (sums_only) return;

#pragma GCC unroll 4
  for (int q = 0; q < Q; ++q) {
    const int64_t row = first_row + q * kQuarterRows;
    if (row >= w.rows) break;
    const __m256i mask = _mm256_cmpgt_epi32(
        _mm256_set1_epi32(w.rows - row < kQuarterRows ? static_cast<int>(w.rows - row) : kQuarterRows),
        _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256 factor = _mm256_load_ps(w.factor + row);
    const __m256 bias = _mm256_load_ps(w.bias + row);
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t)
      _mm256_maskstore_ps(out.y + (token + t) * out.stride + row, mask,
                          _mm256_fmadd_ps(total[t][q], factor, bias));
  }
}

template <typename Dot, int T>
void panel_of_tokens(const NibblePanels& w, int64_t panel, const NibbleTokens& x, int64_t token,
                     const NibbleResults& out) {
  for (int half = 0; half < 2 && panel * kPanelRows + half * kHalfRows < w.rows; half += kHalves<T>)
    halves_of_tokens<Dot, T>(w, panel, half, x, token, out);
}

template <typename Dot>
void nibble_panels_256(const NibblePanels& w, const NibbleTokens& x, int64_t begin, int64_t end,
                       const NibbleResults& out) {
  for (int64_t panel = begin; panel < end; ++panel)
    for (int64_t token = 0; token < x.tokens; token += kTokens) {
      switch (x.tokens - token) {
        case 1:
          panel_of_tokens<Dot, 1>(w, panel, x, token, out);
          break;
        case 2:
          panel_of_tokens<Dot, 2>(w, panel, x, token, out);
          break;
        case 3:
          panel_of_tokens<Dot, 3>(w, panel, x, token, out);
          break;
        default:
          panel_of_tokens<Dot, kTokens>(w, panel, x, token, out);
      }
    }
}

}  // namespace
}  // namespace quatrain::ops
