// Causal attention of a batch of sequences over their KV pages: softmax(scale q K^T) V per head, with grouped
// query heads and an optional sliding window.
//
// Pages are taken in order with an online softmax that starts anew every kSplitPages pages; the parts are
// merged in order. So a query's result follows from its position alone: not from the batch, the chunk of the
// prompt it came with, or the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "ops/kv_cache.h"

namespace quatrain::ops {

inline constexpr int64_t kSplitPages = 4;

struct AttentionShape {
  int64_t heads =
      0;  // query heads: a multiple of the layout's kv_heads; head h reads KV head h / (heads / kv_heads)
  float scale = 1;     // on q . k
  int64_t window = 0;  // a query at position p sees positions above p - window; 0: all up to p
  // With unquantised pages: how many of the first tokens, and of the last that a query sees (its own token
  // among them), are read there.
  int64_t sink = 0, recent = 0;
  int64_t query_stride = 0, out_stride = 0;  // floats between tokens
};

/// One sequence's queries: `tokens` of them, the first at `position`, with the keys and values of every
/// position up to the last one already in the pages.
struct AttentionSequence {
  const float* query = nullptr;  // [tokens, heads * head_dim]
  float* out = nullptr;          // the same shape
  int64_t tokens = 0;
  int64_t position = 0;
  const std::byte* const* pages = nullptr;  // from position 0
  // Unquantised pages of the same numbers, nullptr where no query reads one.
  const std::byte* const* exact = nullptr;
};

/// `exact`: the layout of unquantised pages, or nullptr where there are none (sink and recent then count for
/// nothing).
void attention(const KvLayout& layout, const AttentionShape& shape,
               std::span<const AttentionSequence> sequences, ThreadPool& pool,
               const KvLayout* exact = nullptr);

}  // namespace quatrain::ops
