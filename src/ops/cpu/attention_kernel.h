// Attention of a block of rows over KV pages, over cpu/vec.h: scores and weighted values are small matrix
// products on widened pages, the softmax between them is online.
#pragma once

#include "ops/cpu/attention.h"
#include "ops/cpu/kv_cache_kernel.h"
#include "ops/cpu/vec.h"

namespace quatrain::ops::QUATRAIN_VEC_ISA {

// Rows and vectors of a register tile: the sums, a row of B and a broadcast fit 32 (AVX-512) or 16 registers.
inline constexpr int kTileRows = kLanes == 4 ? 3 : 6;
inline constexpr int kTileVectors = kLanes == 16 ? 4 : 2;

struct TileArguments {
  const float* a;
  const float* b;
  float* c;
  int64_t a_stride, b_stride, c_stride, depth;
};

/// C (+)= A B for Rows x (Vectors * kLanes): every element is one sum in the order of `depth`.
template <int Rows, int Vectors, bool Accumulate>
inline void tile(const TileArguments& t) {
  Vec sum[Rows][Vectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v)
      sum[r][v] = Accumulate ? load(t.c + r * t.c_stride + v * kLanes) : zero();
  for (int64_t k = 0; k < t.depth; ++k) {
    Vec b[Vectors];
    for (int v = 0; v < Vectors; ++v) b[v] = load(t.b + k * t.b_stride + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Vec a = broadcast(t.a[r * t.a_stride + k]);
      for (int v = 0; v < Vectors; ++v) sum[r][v] = fma(a, b[v], sum[r][v]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) store(t.c + r * t.c_stride + v * kLanes, sum[r][v]);
}

template <int Rows, bool Accumulate>
inline void tile_columns(TileArguments t, int64_t columns) {
  constexpr int64_t kColumns = kTileVectors * kLanes;
  for (; columns >= kColumns; columns -= kColumns, t.b += kColumns, t.c += kColumns)
    tile<Rows, kTileVectors, Accumulate>(t);
  for (; columns > 0; columns -= kLanes, t.b += kLanes, t.c += kLanes) tile<Rows, 1, Accumulate>(t);
}

template <bool Accumulate, int Rows = kTileRows>
inline void tile_rows(const TileArguments& t, int64_t rows, int64_t columns) {
  if (rows == Rows) return tile_columns<Rows, Accumulate>(t, columns);
  if constexpr (Rows > 1) tile_rows<Accumulate, Rows - 1>(t, rows, columns);
}

/// C (+)= A B, C [rows, columns] with columns a multiple of kLanes.
template <bool Accumulate>
inline void product(TileArguments t, int64_t rows, int64_t columns) {
  for (; rows > 0; rows -= kTileRows, t.a += kTileRows * t.a_stride, t.c += kTileRows * t.c_stride)
    tile_rows<Accumulate>(t, rows < kTileRows ? rows : kTileRows, columns);
}

/// Scores of one row become weights exp(score - largest); the state of earlier pages shrinks to match.
/// Only [begin, end) of the 64 scores are visible.
inline void softmax_row(float* scores, int64_t begin, int64_t end, float scale, int64_t dim, float& largest,
                        float& sum, float* values) {
  const float minus_infinity = -__builtin_inff();
  for (int64_t t = 0; t < begin; ++t) scores[t] = minus_infinity;
  for (int64_t t = end; t < kPageTokens; ++t) scores[t] = minus_infinity;
  Vec top = broadcast(minus_infinity);
  for (int64_t t = 0; t < kPageTokens; t += kLanes) {
    const Vec scaled = mul(load(scores + t), broadcast(scale));
    store(scores + t, scaled);
    top = max(top, scaled);
  }
  const float page_top = max_lane(top);
  const float new_top = page_top > largest ? page_top : largest;
  float shrink[kLanes];
  store(shrink, exp(broadcast(largest - new_top)));
  Vec total = zero();
  for (int64_t t = 0; t < kPageTokens; t += kLanes) {
    const Vec weight = exp(sub(load(scores + t), broadcast(new_top)));
    store(scores + t, weight);
    total = add(total, weight);
  }
  largest = new_top;
  sum = sum * shrink[0] + sum_lanes(total);
  if (shrink[0] != 1)
    for (int64_t d = 0; d < dim; d += kLanes) store(values + d, mul(load(values + d), broadcast(shrink[0])));
}

inline void attend_pages(const AttentionBlock& block, int64_t first, int64_t last,
                         const AttentionState& state) {
  const KvLayout& layout = *block.layout;
  const int64_t dim = layout.padded_dim;
  for (int64_t row = 0; row < block.rows; ++row) state.largest[row] = -__builtin_inff(), state.sum[row] = 0;
  for (int64_t i = 0; i < block.rows * dim; ++i) state.values[i] = 0;
  float* wide_keys = block.scratch;
  float* wide_values = wide_keys + layout.head_dim * kPageTokens;
  float* scores = wide_values + dim * kPageTokens;
  const int64_t seen_end = seen_tokens(block, block.position + (block.rows - 1) / block.group).last;
  for (int64_t page = first; page < last; ++page) {
    const int64_t base = page * kPageTokens;
    // Rows before `row0` end before this page.
    const int64_t below = base + block.lag - block.position;
    const int64_t row0 = below > 0 ? below * block.group : 0;
    const int64_t rows = block.rows - row0;
    const int64_t tokens = seen_end - base < kPageTokens ? seen_end - base : kPageTokens;
    if (rows <= 0 || tokens <= 0) break;
    const std::byte* head =
        block.pages[page] + layout.offset + static_cast<size_t>(block.head) * layout.head_bytes;
    const float* keys = reinterpret_cast<const float*>(head);
    const float* values = reinterpret_cast<const float*>(head + layout.values);
    if (layout.bits != 16) {
      kv_widen_keys(layout, head, wide_keys);
      kv_widen_values(layout, head, tokens, wide_values);
      keys = wide_keys;
      values = wide_values;
    }
    product<false>({block.query + row0 * layout.head_dim, keys, scores, layout.head_dim, kPageTokens,
                    kPageTokens, layout.head_dim},
                   rows, kPageTokens);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = row0 + r;
      const SeenTokens seen = seen_tokens(block, block.position + row / block.group);
      const int64_t end = seen.last - base < kPageTokens ? seen.last - base : kPageTokens;
      const int64_t oldest = seen.first - base;
      float* row_scores = scores + r * kPageTokens;
      if (oldest >= end) {  // this row sees nothing of the page
        for (int64_t t = 0; t < kPageTokens; ++t) row_scores[t] = 0;
        continue;
      }
      softmax_row(row_scores, oldest > 0 ? oldest : 0, end, block.scale, dim, state.largest[row],
                  state.sum[row], state.values + row * dim);
    }
    product<true>({scores, values, state.values + row0 * dim, kPageTokens, dim, dim, tokens}, rows, dim);
  }
}

inline void attention_merge(int64_t rows, int64_t dim, const AttentionState& part,
                            const AttentionState& state) {
  for (int64_t row = 0; row < rows; ++row) {
    const float a = state.largest[row], b = part.largest[row], top = a > b ? a : b;
    if (b == -__builtin_inff()) continue;  // the part's pages are outside this row's window
    float shrink_a[kLanes], shrink_b[kLanes];
    store(shrink_a, exp(broadcast(a - top)));
    store(shrink_b, exp(broadcast(b - top)));
    state.largest[row] = top;
    state.sum[row] = state.sum[row] * shrink_a[0] + part.sum[row] * shrink_b[0];
    float* to = state.values + row * dim;
    const float* from = part.values + row * dim;
    for (int64_t d = 0; d < dim; d += kLanes)
      store(to + d,
            add(mul(load(to + d), broadcast(shrink_a[0])), mul(load(from + d), broadcast(shrink_b[0]))));
  }
}

inline void attention_finish(const float* values, float sum, int64_t count, float* out) {
  const Vec divisor = broadcast(sum);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, div(load(values + i), divisor));
  if (i < count) store_first(out + i, div(load(values + i), divisor), count - i);
}

}  // namespace quatrain::ops::QUATRAIN_VEC_ISA
