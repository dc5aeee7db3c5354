// What each instruction set gives to attention.cpp.
#pragma once

#include <cstdint>
#include <limits>

#include "ops/kv_cache.h"

namespace quatrain::ops {

/// Softmax state of a block of rows: the largest score, the sum of exponentials, the weighted sum of values.
struct AttentionState {
  float* largest = nullptr;  // [rows], -infinity before the first key
  float* sum = nullptr;      // [rows]
  float* values = nullptr;   // [rows, padded_dim]
};

/// The query heads of one KV head for a run of tokens: row r is token r / group at position + r / group.
struct AttentionBlock {
  const KvLayout* layout = nullptr;
  int64_t head = 0;
  const std::byte* const* pages = nullptr;
  const float* query = nullptr;  // [rows, head_dim]
  int64_t rows = 0;
  int64_t group = 1;
  int64_t position = 0;
  // What a row at position p sees: tokens above p - window (0: no such bound) that are in [begin, end) and at
  // most p - lag.
  int64_t window = 0, begin = 0, end = std::numeric_limits<int64_t>::max(), lag = 0;
  float scale = 1;
  float* scratch = nullptr;  // attention_scratch() floats
};

/// Tokens [first, last) that a row at `position` sees; none where last <= first. Static: every instruction
/// set has its own.
struct SeenTokens {
  int64_t first, last;
};
static inline SeenTokens seen_tokens(const AttentionBlock& block, int64_t position) {
  const int64_t oldest = block.window > 0 ? position + 1 - block.window : 0;
  const int64_t newest = position + 1 - block.lag;
  return {oldest > block.begin ? oldest : block.begin, newest < block.end ? newest : block.end};
}

/// Widened keys and values of a page, and the scores of every row.
inline int64_t attention_scratch(const KvLayout& layout, int64_t rows) {
  return kPageTokens * (layout.head_dim + layout.padded_dim + rows);
}

struct AttentionKernel {
  /// `state` becomes that of pages [first, last), at most kSplitPages; of none at all where last <= first.
  void (*attend)(const AttentionBlock& block, int64_t first, int64_t last, const AttentionState& state);
  /// Folds `part` into `state`, which comes before it.
  void (*merge)(int64_t rows, int64_t padded_dim, const AttentionState& part, const AttentionState& state);
  /// out[i] = values[i] / sum.
  void (*finish)(const float* values, float sum, int64_t count, float* out);
};

extern const AttentionKernel attention_kernel_generic, attention_kernel_avx2, attention_kernel_avx512;

}  // namespace quatrain::ops
