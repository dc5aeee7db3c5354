// One zmm register is a half panel: 16 rows, 4 columns. Up to 8 tokens share the widened weights, with 2
// accumulators a token; FP32 totals stay in the first-level cache.
#include <immintrin.h>

#include "ops/cpu/nibble_panels.h"

namespace quatrain::ops {
namespace {

// 16 accumulators for the tokens of a block, 4 weight operands, and room for broadcasts in 32 registers.
constexpr int kTokens = kBlockTokens;

// The intrinsic makes g++ 12 copy and spill the accumulator, which halves the speed; a read-write operand
// does not, if it is a variable of its own: an array element as operand pins the array to memory.
inline __attribute__((always_inline)) __m512i dot(__m512i acc, __m512i codes, __m512i weights) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(codes), "v"(weights));
  return acc;
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
                                                    const __m512i (&second)[2], const uint8_t* codes) {
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const __m512i a = broadcast(codes + t * kStepColumns);
    group.acc[t][0][0] = dot(group.acc[t][0][0], a, first[0]);
    group.acc[t][1][0] = dot(group.acc[t][1][0], a, first[1]);
    const __m512i b = broadcast(codes + t * kStepColumns + 4);
    group.acc[t][0][Group<T>::kChains - 1] = dot(group.acc[t][0][Group<T>::kChains - 1], b, second[0]);
    group.acc[t][1][Group<T>::kChains - 1] = dot(group.acc[t][1][Group<T>::kChains - 1], b, second[1]);
  }
}

template <int T, bool kFromMemory>
inline __attribute__((always_inline)) void add_dense(Group<T>& group, const uint8_t* dense, int64_t steps,
                                                     const uint8_t* codes) {
  const __m512i high = _mm512_set1_epi8(static_cast<char>(0xF0));
  for (int64_t s = 0; s < steps; ++s, dense += kStepBytes, codes += T * kStepColumns) {
    __m512i first[2], second[2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i x = _mm512_load_si512(dense + half * kHalfBytes);
      if constexpr (kFromMemory) prefetch_stream(dense + half * kHalfBytes, kStepBytes);
      first[half] = _mm512_and_si512(x, high);
      second[half] = _mm512_and_si512(_mm512_slli_epi16(x, 4), high);
    }
    add_step<T>(group, first, second, codes);
  }
}

// As add_dense with lo nibbles.
template <int T, bool kFromMemory>
inline __attribute__((always_inline)) void add_residual(Group<T>& group, const uint8_t* dense,
                                                        const NibbleResidual& residual, int64_t steps,
                                                        const uint8_t* codes) {
  constexpr int kSelect = 0xE4;  // mask ? x : l
  const __m512i high = _mm512_set1_epi8(static_cast<char>(0xF0));
  const uint8_t* next[2] = {residual.lo[0], residual.lo[1]};
  for (int64_t s = 0; s < steps; ++s, dense += kStepBytes, codes += T * kStepColumns) {
    __m512i first[2], second[2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i x = _mm512_load_si512(dense + half * kHalfBytes);
      const __m512i l = _mm512_load_si512(next[half]);
      if constexpr (kFromMemory) {
        prefetch_stream(dense + half * kHalfBytes, kStepBytes);
        prefetch_stream(next[half], residual.advance[half]);
      }
      next[half] += residual.advance[half];
      first[half] = _mm512_ternarylogic_epi32(x, l, high, kSelect);
      second[half] =
          _mm512_ternarylogic_epi32(_mm512_slli_epi16(x, 4), _mm512_srli_epi16(l, 4), high, kSelect);
    }
    add_step<T>(group, first, second, codes);
  }
}

// What becomes of a group's sums.
enum class Ends {
  Sums,    // P is the result
  Groups,  // P - z S times the scales
  Rows,    // P times the group's scale; z and the token's scale enter once a row (NibblePanels::row_sums)
};

// Starts a group at -z S, so that its sum ends as P - z S; at 0 where P alone is wanted.
template <int T, Ends kEnds>
inline __attribute__((always_inline)) void start(Group<T>& group, const NibblePanels& w, int64_t at,
                                                 const int32_t* negative_zero) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    if constexpr (kEnds != Ends::Groups) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) group.acc[t][half][0] = _mm512_setzero_si512();
    } else if (w.wide) {
      const __m512i sums = _mm512_load_si512(w.wide_sums + at + half * kHalfRows);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        group.acc[t][half][0] = _mm512_mullo_epi32(_mm512_set1_epi32(negative_zero[t]), sums);
    } else {
      // pairs (S, 0) of 16 bits: the product with (-z, its sign) is one cheap instruction
      const __m512i sums = _mm512_cvtepu16_epi32(
          _mm256_load_si256(reinterpret_cast<const __m256i*>(w.sums + at + half * kHalfRows)));
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        group.acc[t][half][0] = _mm512_madd_epi16(_mm512_set1_epi32(negative_zero[t]), sums);
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

// One panel's streams.
struct Panel {
  Panel(const NibblePanels& w, int64_t panel)
      : first_row(panel * kPanelRows),
        dense(w.dense + panel * w.total_steps() * kStepBytes),
        residual(w.residual + w.residual_offset[panel]),
        flags(w.flags + panel * w.units),
        sums(panel * w.groups * kPanelRows),
        group_scale(w.group_scale + panel * w.scale_groups * kPanelRows) {}

  int64_t first_row;
  const uint8_t *dense, *residual, *flags;
  int64_t sums;
  const uint16_t* group_scale;
};

// Adds the group's products, units [begin, end), and moves the streams to its end.
template <int T, bool kFromMemory, bool kResidual>
inline __attribute__((always_inline)) void add_group(Group<T>& group, const NibblePanels& w,
                                                     const Panel& panel, int64_t begin, int64_t end,
                                                     const uint8_t*& dense, const uint8_t*& residual,
                                                     const uint8_t*& codes) {
  const auto go_on = [&](int64_t steps) {
    dense += steps * kStepBytes;
    codes += steps * T * kStepColumns;
  };
  if constexpr (!kResidual) {
    const int64_t steps = (end - begin - 1) * w.steps + (end < w.units ? w.steps : w.last_steps);
    add_dense<T, kFromMemory>(group, dense, steps, codes);
    return go_on(steps);
  }
  for (int64_t u = begin; u < end; ++u) {
    const int64_t steps = u + 1 < w.units ? w.steps : w.last_steps;
    if (panel.flags[u] == 0)
      add_dense<T, kFromMemory>(group, dense, steps, codes);
    else
      add_residual<T, kFromMemory>(group, dense, residual_of_unit(residual, panel.flags[u], steps), steps,
                                   codes);
    go_on(steps);
  }
}

// The next panel's dense stream, fetched in equal parts by every group of `tiles` tiles; past the last panel,
// what lies behind it, to no harm.
struct Ahead {
  Ahead(const NibblePanels& w, const Panel& panel, int64_t tiles)
      : next(panel.dense + w.total_steps() * kStepBytes),
        end(next + w.total_steps() * kStepBytes),
        part((w.total_steps() + tiles * w.groups - 1) / (tiles * w.groups) * kStepBytes) {}
  void fetch() {
    const uint8_t* last = next + part < end ? next + part : end;
    for (; next < last; next += kHalfBytes) __builtin_prefetch(next);
  }
  const uint8_t *next, *end;
  int64_t part;  // bytes
};

// One panel against the T tokens of the block that begins at `token`.
template <int T, bool kFromMemory, bool kResidual, Ends kEnds>
inline __attribute__((always_inline)) void tile(const NibblePanels& w, const Panel& panel,
                                                const NibbleTokens& x, int64_t token,
                                                const NibbleResults& out, Ahead& ahead) {
  const uint8_t *dense = panel.dense, *residual = panel.residual, *codes = x.codes + token * x.stride;
  const int32_t* negative_zero = x.negative_zero + token * w.groups;
  const float* scale = x.scale + token * w.groups;
  const uint16_t* group_scale = panel.group_scale;
  int64_t scale_left = w.groups_per_scale;
  __m512 total[T][2];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
      total[t][half] = kEnds != Ends::Rows
                           ? _mm512_setzero_ps()
                           : _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_set1_epi32(negative_zero[t])),
                                           _mm512_load_ps(w.row_sums + panel.first_row + half * kHalfRows));

  for (int64_t g = 0; g < w.groups; ++g, negative_zero += T, scale += T) {
    if constexpr (!kFromMemory) ahead.fetch();
    Group<T> group;
    start<T, kEnds>(group, w, panel.sums + g * kPanelRows, negative_zero);
    const int64_t unit = g * w.units_per_group;
    add_group<T, kFromMemory, kResidual>(
        group, w, panel, unit, unit + w.units_per_group < w.units ? unit + w.units_per_group : w.units, dense,
        residual, codes);
    if constexpr (kEnds == Ends::Sums) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          alignas(64) int32_t sums[kHalfRows];
          _mm512_store_si512(sums, sum_of<T>(group, t, half));
          const int64_t row = panel.first_row + half * kHalfRows;
          for (int64_t r = 0; r < kHalfRows && row + r < w.rows; ++r)
            out.sums[((token + t) * w.rows + row + r) * w.groups + g] = sums[r];
        }
    } else if (kEnds == Ends::Groups && w.scale_groups == 0) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const __m512 s = _mm512_set1_ps(scale[t]);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half)
          total[t][half] = _mm512_fmadd_ps(s, _mm512_cvtepi32_ps(sum_of<T>(group, t, half)), total[t][half]);
      }
    } else {
      const __m512 of_rows[2] = {
          _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(group_scale))),
          _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(group_scale + kHalfRows)))};
      if (--scale_left == 0) group_scale += kPanelRows, scale_left = w.groups_per_scale;
      if constexpr (kEnds == Ends::Rows) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half)
            total[t][half] =
                _mm512_fmadd_ps(of_rows[half], _mm512_cvtepi32_ps(sum_of<T>(group, t, half)), total[t][half]);
        continue;
      }
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const __m512 s = _mm512_set1_ps(scale[t]);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const __m512 term = _mm512_mul_ps(_mm512_cvtepi32_ps(sum_of<T>(group, t, half)), of_rows[half]);
          total[t][half] = _mm512_fmadd_ps(s, term, total[t][half]);
        }
      }
    }
  }
  if constexpr (kEnds == Ends::Sums) return;

  scale -= w.groups * T;
  float* y = out.y + token * out.stride + panel.first_row;
  const int64_t rows = w.rows - panel.first_row;
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const int64_t left = rows - half * kHalfRows;
    if (left <= 0) break;
    const __m512 factor = _mm512_load_ps(w.factor + panel.first_row + half * kHalfRows);
    const __m512 bias = _mm512_load_ps(w.bias + panel.first_row + half * kHalfRows);
    const auto result = [&](int t) {
      return _mm512_fmadd_ps(total[t][half],
                             kEnds == Ends::Rows ? _mm512_set1_ps(scale[t] * 0.0625f) : factor, bias);
    };
    // A whole line that is stored at once is not read first, which pays where it comes from memory (a Zen 5:
    // 1.3 times as fast); lines that are in the cache take stores under a mask sooner (1.05 times).
    if (out.beyond_cache && left >= kHalfRows) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) _mm512_storeu_ps(y + t * out.stride + half * kHalfRows, result(t));
    } else {
      const auto mask = static_cast<__mmask16>(left >= kHalfRows ? 0xFFFF : (1u << left) - 1);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        _mm512_mask_storeu_ps(y + t * out.stride + half * kHalfRows, mask, result(t));
    }
  }
}

// One panel against the blocks of T tokens in [begin, end). Where the panel is in the cache, the tiles share
// fetching the next one.
template <int T, bool kFromMemory, bool kResidual, Ends kEnds>
void tiles(const NibblePanels& w, const Panel& panel, const NibbleTokens& x, int64_t begin, int64_t end,
           const NibbleResults& out) {
  if (begin >= end) return;
  Ahead ahead(w, panel, (end - begin) / T);
  for (int64_t token = begin; token < end; token += T)
    tile<T, kFromMemory, kResidual, kEnds>(w, panel, x, token, out, ahead);
}

using Tiles = void (*)(const NibblePanels&, const Panel&, const NibbleTokens&, int64_t, int64_t,
                       const NibbleResults&);
template <bool kResidual, Ends kEnds>
constexpr Tiles kTilesFromMemory[kTokens + 1] = {nullptr,
                                                 tiles<1, true, kResidual, kEnds>,
                                                 tiles<2, true, kResidual, kEnds>,
                                                 tiles<3, true, kResidual, kEnds>,
                                                 tiles<4, true, kResidual, kEnds>,
                                                 tiles<5, true, kResidual, kEnds>,
                                                 tiles<6, true, kResidual, kEnds>,
                                                 tiles<7, true, kResidual, kEnds>,
                                                 tiles<8, true, kResidual, kEnds>};

struct Kernels {
  const Tiles* from_memory;  // of 1 to kTokens tokens
  Tiles cached;              // of kTokens
};
template <bool kResidual, Ends kEnds>
constexpr Kernels kernels_of() {
  return {kTilesFromMemory<kResidual, kEnds>, tiles<kTokens, false, kResidual, kEnds>};
}
template <bool kResidual>
Kernels kernels_for(const NibblePanels& weights) {
  return weights.row_sums != nullptr ? kernels_of<kResidual, Ends::Rows>()
                                     : kernels_of<kResidual, Ends::Groups>();
}

}  // namespace

void nibble_panels_avx512vnni(const NibblePanels& weights, const NibbleTokens& x, int64_t begin, int64_t end,
                              const NibbleResults& out) {
  const int64_t whole = x.tokens / kTokens * kTokens;
  const Kernels kernels = out.sums != nullptr    ? kernels_of<true, Ends::Sums>()
                          : weights.has_residual ? kernels_for<true>(weights)
                                                 : kernels_for<false>(weights);
  for (int64_t p = begin; p < end; ++p) {
    const Panel panel(weights, p);
    if (whole > 0) {  // the first tile brings the panel into the cache
      kernels.from_memory[kTokens](weights, panel, x, 0, kTokens, out);
      kernels.cached(weights, panel, x, kTokens, whole, out);
    }
    if (whole < x.tokens) kernels.from_memory[x.tokens - whole](weights, panel, x, whole, x.tokens, out);
  }
}

}  // namespace quatrain::ops
