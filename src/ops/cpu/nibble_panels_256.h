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

// Halves that are computed together: both for one or two tokens; one after the other, group by group so that
// the dense stream is still read once, for more tokens than the 16 registers hold.
template <int T>
constexpr int kHalves = T <= 2 ? 2 : 1;

// acc += `steps` steps of the halves from `dense` on, with lo nibbles where W is Dot::WeightsWithLo; lo[h]
// advances by advance[h] bytes a step, codes by `stride`.
template <typename W, int T>
inline __attribute__((always_inline)) void add_steps(__m256i (&acc)[T][2 * kHalves<T>], const uint8_t* dense,
                                                     const uint8_t* const* lo, const int64_t* advance,
                                                     int64_t steps, const uint8_t* codes, int64_t stride) {
  constexpr int Q = 2 * kHalves<T>;
  const auto weights_of = [&](int64_t s, int q) {
    const auto* hi = reinterpret_cast<const __m256i*>(dense + q / 2 * kHalfBytes + q % 2 * kQuarterBytes);
    if (q % 2 == 0) prefetch_stream(reinterpret_cast<const uint8_t*>(hi), kStepBytes);
    if constexpr (W::kHasLo) {
      const uint8_t* from = lo[q / 2] + s * advance[q / 2] + q % 2 * kQuarterBytes;
      return W(_mm256_load_si256(hi), _mm256_load_si256(reinterpret_cast<const __m256i*>(from)));
    } else {
      return W(_mm256_load_si256(hi));
    }
  };
  for (int64_t s = 0; s < steps; ++s, dense += kStepBytes, codes += stride) {
    if constexpr (T <= 2) {  // codes stay in registers
      __m256i a[T], b[T];
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        a[t] = broadcast(codes + t * kStepColumns);
        b[t] = broadcast(codes + t * kStepColumns + 4);
      }
#pragma GCC unroll 4
      for (int q = 0; q < Q; ++q) {
        const W weights = weights_of(s, q);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) acc[t][q] = weights.add(acc[t][q], a[t], b[t]);
      }
    } else {  // weights stay in registers
      const W weights[2] = {weights_of(s, 0), weights_of(s, 1)};
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        const __m256i a = broadcast(codes + t * kStepColumns), b = broadcast(codes + t * kStepColumns + 4);
        acc[t][0] = weights[0].add(acc[t][0], a, b);
        acc[t][1] = weights[1].add(acc[t][1], a, b);
      }
    }
  }
}

// Where the streams stand at the start of a group.
struct Position {
  int64_t unit;
  const uint8_t* dense;
  const uint8_t* residual;
  const uint8_t* codes;
};

// Adds one group's products of the halves [first_half, first_half + kHalves<T>) and returns the group's end.
template <typename Dot, int T>
inline __attribute__((always_inline)) Position add_group(__m256i (&acc)[T][2 * kHalves<T>],
                                                         const NibblePanels& w, const uint8_t* flags,
                                                         int first_half, Position at, int64_t stride) {
  const int64_t end = at.unit + w.units_per_group < w.units ? at.unit + w.units_per_group : w.units;
  for (; at.unit < end; ++at.unit) {
    const int64_t steps = at.unit + 1 < w.units ? w.steps : w.last_steps;
    const NibbleResidual lo = residual_of_unit(at.residual, flags[at.unit], steps);
    const uint8_t* dense = at.dense + first_half * kHalfBytes;
    if ((flags[at.unit] >> first_half & ((1 << kHalves<T>)-1)) != 0) {
      add_steps<typename Dot::WeightsWithLo, T>(acc, dense, lo.lo + first_half, lo.advance + first_half,
                                                steps, at.codes, stride);
    } else {
      add_steps<typename Dot::Weights, T>(acc, dense, nullptr, nullptr, steps, at.codes, stride);
    }
    at.dense += steps * kStepBytes;
    at.codes += steps * stride;
  }
  return at;
}

// One panel against the T tokens from `token` on, which are of one block.
template <typename Dot, int T>
void panel_of_tokens(const NibblePanels& w, int64_t panel, const NibbleTokens& x, int64_t token,
                     const NibbleResults& out) {
  constexpr int H = kHalves<T>;
  constexpr int Q = 2 * H;
  const int64_t first = token / kBlockTokens * kBlockTokens;
  const int64_t block = x.block_tokens(first), in_block = token - first;
  const float* scale = x.scale + first * w.groups + in_block;
  const int32_t* negative_zero = x.negative_zero + first * w.groups + in_block;
  const uint8_t* flags = w.flags + panel * w.units;
  const bool sums_only = out.sums != nullptr;
  const bool from_zero = sums_only || w.row_sums != nullptr;
  __m256 total[2 / H][T][Q];
#pragma GCC unroll 2
  for (int h = 0; h < 2 / H; ++h)
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
      for (int q = 0; q < Q; ++q)
        total[h][t][q] = w.row_sums == nullptr
                             ? _mm256_setzero_ps()
                             : _mm256_mul_ps(_mm256_set1_ps(static_cast<float>(negative_zero[t])),
                                             _mm256_load_ps(w.row_sums + panel * kPanelRows + h * kHalfRows +
                                                            q * kQuarterRows));

  Position position{0, w.dense + panel * w.total_steps() * kStepBytes, w.residual + w.residual_offset[panel],
                    x.codes + first * x.stride + in_block * kStepColumns};
  for (int64_t g = 0; g < w.groups; ++g) {
    Position next = position;
#pragma GCC unroll 2
    for (int h = 0; h < 2 / H; ++h) {
      const int64_t at = (panel * w.groups + g) * kPanelRows + h * kHalfRows;
      __m256i acc[T][Q];  // starts at -z S and ends as P - z S; at 0 where P alone is wanted
#pragma GCC unroll 4
      for (int q = 0; q < Q; ++q) {
        __m256i sums = _mm256_setzero_si256();
        if (!from_zero && w.wide)
          sums = _mm256_load_si256(reinterpret_cast<const __m256i*>(w.wide_sums + at + q * kQuarterRows));
        if (!from_zero && !w.wide)
          sums = _mm256_cvtepi16_epi32(
              _mm_load_si128(reinterpret_cast<const __m128i*>(w.sums + at + q * kQuarterRows)));
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t)
          acc[t][q] = from_zero ? _mm256_setzero_si256()
                                : _mm256_mullo_epi32(_mm256_set1_epi32(negative_zero[g * block + t]), sums);
      }
      next = add_group<Dot, T>(acc, w, flags, h, position, block * kStepColumns);

      if (sums_only) {
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
          for (int q = 0; q < Q; ++q) {
            alignas(32) int32_t sums[kQuarterRows];
            _mm256_store_si256(reinterpret_cast<__m256i*>(sums), acc[t][q]);
            const int64_t row = panel * kPanelRows + h * kHalfRows + q * kQuarterRows;
            for (int64_t r = 0; r < kQuarterRows && row + r < w.rows; ++r)
              out.sums[((token + t) * w.rows + row + r) * w.groups + g] = sums[r];
          }
        continue;
      }
      const uint16_t* scales =
          w.group_scale + (panel * w.scale_groups + g / w.groups_per_scale) * kPanelRows + h * kHalfRows;
#pragma GCC unroll 4
      for (int q = 0; q < Q; ++q) {
        __m256 group_scale = _mm256_setzero_ps();
        if (w.scale_groups > 0)
          group_scale =
              _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + q * kQuarterRows)));
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
          __m256 term = _mm256_cvtepi32_ps(acc[t][q]);
          if (w.row_sums != nullptr) {
            total[h][t][q] = _mm256_fmadd_ps(group_scale, term, total[h][t][q]);
            continue;
          }
          if (w.scale_groups > 0) term = _mm256_mul_ps(term, group_scale);
          total[h][t][q] = _mm256_fmadd_ps(_mm256_set1_ps(scale[g * block + t]), term, total[h][t][q]);
        }
      }
    }
    position = next;
  }
  if (sums_only) return;

#pragma GCC unroll 2
  for (int h = 0; h < 2 / H; ++h)
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) {
      const int64_t row = panel * kPanelRows + h * kHalfRows + q * kQuarterRows;
      if (row >= w.rows) break;
      const __m256i mask = _mm256_cmpgt_epi32(
          _mm256_set1_epi32(w.rows - row < kQuarterRows ? static_cast<int>(w.rows - row) : kQuarterRows),
          _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
      const __m256 factor = _mm256_load_ps(w.factor + row);
      const __m256 bias = _mm256_load_ps(w.bias + row);
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        const __m256 by = w.row_sums == nullptr ? factor : _mm256_set1_ps(scale[t] * 0.0625f);
        _mm256_maskstore_ps(out.y + (token + t) * out.stride + row, mask,
                            _mm256_fmadd_ps(total[h][t][q], by, bias));
      }
    }
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
        default:  // kTokens divides a block
          panel_of_tokens<Dot, kTokens>(w, panel, x, token, out);
      }
    }
}

}  // namespace
}  // namespace quatrain::ops
