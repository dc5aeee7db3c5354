// One zmm register is a half panel: 16 rows, 4 columns. Up to 8 tokens share the widened weights, with 2
// accumulators a token; FP32 totals stay in the first-level cache.
#include <immintrin.h>

#include "ops/cpu/nibble_panels.h"

namespace quatrain::ops {
namespace {

// Bytes that the weights are prefetched ahead where they come from memory: a step takes tens of instructions,
// so out-of-order execution alone looks too short a way ahead. 4 KB was the best of 1 to 32 KB on a Zen 5.
constexpr int64_t kPrefetch = 4096;

constexpr int kTokens = 8;  // 16 accumulators, 4 weight operands, and room for broadcasts in 32 registers

// The intrinsic makes g++ 12 copy and spill the accumulator, which halves the speed; a read-write operand
// does not, if it is a variable of its own: an array element as operand pins the array to memory.
inline __attribute__((always_inline)) __m512i dot(__m512i acc, __m512i codes, __m512i weights) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(codes), "v"(weights));
  return acc;
}

inline __attribute__((always_inline)) void prefetch(const uint8_t* data) {
  _mm_prefetch(reinterpret_cast<const char*>(data), _MM_HINT_T0);
}

inline __attribute__((always_inline)) __m512i broadcast(const uint8_t* codes) {
  int word;
  __builtin_memcpy(&word, codes, sizeof word);
  return _mm512_set1_epi32(word);
}

// Accumulators of one group: kChains of them a (token, half), since few tokens alone do not cover the latency
// of a product.
template <int T>
struct Group {
  static constexpr int kChains = T <= 3 ? 2 : 1;
  __m512i acc[T][2][kChains];
};

// One step: 4 weight operands (two halves, columns 0..3 and 4..7) against the codes of T tokens.
template <int T>
inline __attribute__((always_inline)) void add_step(Group<T>& group, const __m512i (&first)[2],
                                                    const __m512i (&second)[2], const uint8_t* codes,
                                                    int64_t stride) {
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const __m512i a = broadcast(codes + t * stride);
    group.acc[t][0][0] = dot(group.acc[t][0][0], a, first[0]);
    group.acc[t][1][0] = dot(group.acc[t][1][0], a, first[1]);
    const __m512i b = broadcast(codes + t * stride + 4);
    group.acc[t][0][Group<T>::kChains - 1] = dot(group.acc[t][0][Group<T>::kChains - 1], b, second[0]);
    group.acc[t][1][Group<T>::kChains - 1] = dot(group.acc[t][1][Group<T>::kChains - 1], b, second[1]);
  }
}

template <int T, bool kFromMemory>
inline __attribute__((always_inline)) void add_dense(Group<T>& group, const uint8_t* dense, int64_t steps,
                                                     const uint8_t* codes, int64_t stride) {
  const __m512i high = _mm512_set1_epi8(static_cast<char>(0xF0));
  for (int64_t s = 0; s < steps; ++s, dense += kStepBytes, codes += kStepColumns) {
    __m512i first[2], second[2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i x = _mm512_load_si512(dense + half * kHalfBytes);
      if constexpr (kFromMemory) prefetch(dense + half * kHalfBytes + kPrefetch);
      first[half] = _mm512_and_si512(x, high);
      second[half] = _mm512_and_si512(_mm512_slli_epi16(x, 4), high);
    }
    add_step<T>(group, first, second, codes, stride);
  }
}

// As add_dense with lo nibbles.
template <int T, bool kFromMemory>
inline __attribute__((always_inline)) void add_residual(Group<T>& group, const uint8_t* dense,
                                                        const NibbleResidual& residual, int64_t steps,
                                                        const uint8_t* codes, int64_t stride) {
  constexpr int kSelect = 0xE4;  // mask ? x : l
  const __m512i high = _mm512_set1_epi8(static_cast<char>(0xF0));
  const uint8_t* next[2] = {residual.lo[0], residual.lo[1]};
  for (int64_t s = 0; s < steps; ++s, dense += kStepBytes, codes += kStepColumns) {
    __m512i first[2], second[2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i x = _mm512_load_si512(dense + half * kHalfBytes);
      const __m512i l = _mm512_load_si512(next[half]);
      if constexpr (kFromMemory) {
        prefetch(dense + half * kHalfBytes + kPrefetch);
        prefetch(next[half] + residual.advance[half] * (kPrefetch / kStepBytes));
      }
      next[half] += residual.advance[half];
      first[half] = _mm512_ternarylogic_epi32(x, l, high, kSelect);
      second[half] =
          _mm512_ternarylogic_epi32(_mm512_slli_epi16(x, 4), _mm512_srli_epi16(l, 4), high, kSelect);
    }
    add_step<T>(group, first, second, codes, stride);
  }
}

// Starts a group at -z S, so that its sum ends as P - z S; at 0 where P alone is asked for.
template <int T>
inline __attribute__((always_inline)) void start(Group<T>& group, const NibblePanels& w, int64_t at,
                                                 const int32_t* negative_zero, bool sums_only) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    if (sums_only) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) group.acc[t][half][0] = _mm512_setzero_si512();
    } else if (w.wide) {
      const __m512i sums = _mm512_load_si512(w.wide_sums + at + half * kHalfRows);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        group.acc[t][half][0] = _mm512_mullo_epi32(_mm512_set1_epi32(negative_zero[t * w.groups]), sums);
    } else {
      // pairs (S, 0) of 16 bits: the product with (-z, its sign) is one cheap instruction
      const __m512i sums = _mm512_cvtepu16_epi32(
          _mm256_load_si256(reinterpret_cast<const __m256i*>(w.sums + at + half * kHalfRows)));
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        group.acc[t][half][0] = _mm512_madd_epi16(_mm512_set1_epi32(negative_zero[t * w.groups]), sums);
    }
    if constexpr (Group<T>::kChains == 2) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) group.acc[t][half][1] = _mm512_setzero_si512();
    }
  }
}

template <int T>
inline __attribute__((always_inline)) __m512i sum_of(const Group<T>& group, int t, int half) {
  if constexpr (Group<T>::kChains == 2) return _mm512_add_epi32(group.acc[t][half][0], group.acc[t][half][1]);
  return group.acc[t][half][0];
}

// One panel against the T tokens from `token` on.
template <int T, bool kFromMemory>
inline __attribute__((always_inline)) void tile(const NibblePanels& w, int64_t panel, const NibbleTokens& x,
                                                int64_t token, const NibbleResults& out) {
  const uint8_t* dense = w.dense + panel * w.total_steps() * kStepBytes;
  const uint8_t* residual = w.residual + w.residual_offset[panel];
  const uint8_t* flags = w.flags + panel * w.units;
  const uint8_t* codes = x.codes + token * x.stride;
  const bool sums_only = out.sums != nullptr;
  __m512 total[T][2];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) total[t][0] = total[t][1] = _mm512_setzero_ps();

  int64_t scale_group = panel * w.scale_groups, scale_left = w.groups_per_scale;
  for (int64_t g = 0, u = 0; g < w.groups; ++g) {
    Group<T> group;
    start<T>(group, w, (panel * w.groups + g) * kPanelRows, x.negative_zero + token * w.groups + g,
             sums_only);
    const int64_t end = u + w.units_per_group < w.units ? u + w.units_per_group : w.units;
    while (u < end) {
      int64_t steps = u + 1 < w.units ? w.steps : w.last_steps;
      if (flags[u++] == 0) {
        for (; u < end && flags[u] == 0; ++u) steps += u + 1 < w.units ? w.steps : w.last_steps;
        add_dense<T, kFromMemory>(group, dense, steps, codes, x.stride);
      } else {
        const NibbleResidual lo = residual_of_unit(residual, flags[u - 1], steps);
        add_residual<T, kFromMemory>(group, dense, lo, steps, codes, x.stride);
      }
      dense += steps * kStepBytes;
      codes += steps * kStepColumns;
    }

    if (sums_only) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          alignas(64) int32_t sums[kHalfRows];
          _mm512_store_si512(sums, sum_of<T>(group, t, half));
          const int64_t row = panel * kPanelRows + half * kHalfRows;
          for (int64_t r = 0; r < kHalfRows && row + r < w.rows; ++r)
            out.sums[((token + t) * w.rows + row + r) * w.groups + g] = sums[r];
        }
      continue;
    }
    const float* scale = x.scale + token * w.groups + g;
    if (w.scale_groups == 0) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const __m512 s = _mm512_set1_ps(scale[t * w.groups]);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half)
          total[t][half] = _mm512_fmadd_ps(s, _mm512_cvtepi32_ps(sum_of<T>(group, t, half)), total[t][half]);
      }
    } else {
      const uint16_t* scales = w.group_scale + scale_group * kPanelRows;
      if (--scale_left == 0) ++scale_group, scale_left = w.groups_per_scale;
      const __m512 group_scale[2] = {
          _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(scales))),
          _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(scales + kHalfRows)))};
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const __m512 s = _mm512_set1_ps(scale[t * w.groups]);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const __m512 term = _mm512_mul_ps(_mm512_cvtepi32_ps(sum_of<T>(group, t, half)), group_scale[half]);
          total[t][half] = _mm512_fmadd_ps(s, term, total[t][half]);
        }
      }
    }
  }
  if (sums_only) return;

#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const int64_t row = panel * kPanelRows + half * kHalfRows;
    const int64_t left = w.rows - row;
    if (left <= 0) break;
    const auto mask = static_cast<__mmask16>(left >= kHalfRows ? 0xFFFF : (1u << left) - 1);
    const __m512 factor = _mm512_load_ps(w.factor + row);
    const __m512 bias = _mm512_load_ps(w.bias + row);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
      _mm512_mask_storeu_ps(out.y + (token + t) * out.stride + row, mask,
                            _mm512_fmadd_ps(total[t][half], factor, bias));
  }
}

// One panel against tokens [begin, end), T at a time.
template <int T, bool kFromMemory>
void tiles(const NibblePanels& w, int64_t panel, const NibbleTokens& x, int64_t begin, int64_t end,
           const NibbleResults& out) {
  for (int64_t token = begin; token + T <= end; token += T) tile<T, kFromMemory>(w, panel, x, token, out);
}

using Tiles = void (*)(const NibblePanels&, int64_t, const NibbleTokens&, int64_t, int64_t,
                       const NibbleResults&);
constexpr Tiles kTilesFromMemory[kTokens + 1] = {nullptr,        tiles<1, true>, tiles<2, true>,
                                                 tiles<3, true>, tiles<4, true>, tiles<5, true>,
                                                 tiles<6, true>, tiles<7, true>, tiles<8, true>};

}  // namespace

void nibble_panels_avx512vnni(const NibblePanels& weights, const NibbleTokens& x, int64_t begin, int64_t end,
                              const NibbleResults& out) {
  const int64_t whole = x.tokens / kTokens * kTokens;
  for (int64_t panel = begin; panel < end; ++panel) {
    if (whole > 0) {  // the first tile brings the panel into the cache
      kTilesFromMemory[kTokens](weights, panel, x, 0, kTokens, out);
      tiles<kTokens, false>(weights, panel, x, kTokens, whole, out);
    }
    if (whole < x.tokens) kTilesFromMemory[x.tokens - whole](weights, panel, x, whole, x.tokens, out);
  }
}

}  // namespace quatrain::ops
