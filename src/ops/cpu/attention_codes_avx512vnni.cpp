#include <immintrin.h>

#include <algorithm>
#include <limits>

#include "ops/attention.h"
#include "ops/cpu/attention_codes.h"

namespace quatrain::ops {
namespace {

constexpr int kTileRows = 6;  // 24 accumulators, 2 operands, a mask and a load in 32 registers
constexpr int64_t kAhead = 8;
constexpr int kVector = 16;  // tokens or columns of an accumulator
constexpr int64_t kMostTokens = kSplitPages * kPageTokens;
constexpr int64_t kMostDim = 1024;
// Queries and weights are 16-bit integers 256 h + l with signed bytes h and l: their products with 4- or
// 8-bit codes are two integer dot products, and their rounding (2^-16 of the largest) is far below that of
// the codes.
constexpr float kLargestInteger = 32512;  // h = 127

inline __attribute__((always_inline)) __m512i dot(__m512i acc, __m512i codes, const int8_t* bytes) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(codes), "m"(*reinterpret_cast<const int32_t*>(bytes)));
  return acc;
}

// Sums of R rows over words of codes: [row][operand][h, l], an operand being 16 words' sums.
template <int R>
struct Sums {
  __m512i acc[R][2][2];
};

template <int R>
inline __attribute__((always_inline)) void clear(Sums<R>& sums) {
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
    for (int o = 0; o < 2; ++o) sums.acc[r][o][0] = sums.acc[r][o][1] = _mm512_setzero_si512();
}

// Adds `words` steps: operand o of step w lies at codes + w * step (4 bits: both in one vector). h and l of
// row r and step w are the four bytes at 4 w of their rows. What lies `ahead` bytes further on is prefetched.
template <int R, bool kNibbles>
inline __attribute__((always_inline)) void add(Sums<R>& sums, const uint8_t* codes, int64_t step,
                                               int64_t words, const int8_t* h, const int8_t* l,
                                               int64_t stride, int64_t ahead) {
  const __m512i low = _mm512_set1_epi8(15);
  for (int64_t w = 0; w < words; ++w, codes += step, h += 4, l += 4) {
    __m512i operand[2];
    operand[0] = _mm512_loadu_si512(codes);
    _mm_prefetch(reinterpret_cast<const char*>(codes) + ahead, _MM_HINT_T1);
    if constexpr (kNibbles) {
      operand[1] = _mm512_and_si512(_mm512_srli_epi16(operand[0], 4), low);
      operand[0] = _mm512_and_si512(operand[0], low);
    } else {
      operand[1] = _mm512_loadu_si512(codes + 64);
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      sums.acc[r][0][0] = dot(sums.acc[r][0][0], operand[0], h + r * stride);
      sums.acc[r][1][0] = dot(sums.acc[r][1][0], operand[1], h + r * stride);
      sums.acc[r][0][1] = dot(sums.acc[r][0][1], operand[0], l + r * stride);
      sums.acc[r][1][1] = dot(sums.acc[r][1][1], operand[1], l + r * stride);
    }
  }
}

// 256 h + l of one row and operand.
inline __m512 value_of(const __m512i (&sums)[2]) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[0]), _mm512_set1_ps(256), _mm512_cvtepi32_ps(sums[1]));
}

// x as h and l of rint(x): |x| <= kLargestInteger.
inline __m512i store_bytes(__m512 x, int8_t* h, int8_t* l) {
  const __m512i integer = _mm512_cvtps_epi32(x);
  const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(integer, _mm512_set1_epi32(128)), 8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(h), _mm512_cvtepi32_epi8(high));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(l), _mm512_cvtepi32_epi8(integer));
  return integer;
}

// 2^x, x <= 0: the Taylor polynomial of degree 6 on |r| <= 1/2, within 1.2e-7; 0 from -150 down.
inline __m512 power_of_two(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-200));
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(1.54035304e-4f);
  for (const float c : {1.33335581e-3f, 9.61812911e-3f, 5.55041087e-2f, 2.40226507e-1f, 6.93147181e-1f, 1.0f})
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
  return _mm512_scalef_ps(p, n);
}

__mmask16 lanes_below(int64_t count) {
  return count >= kVector ? __mmask16(0xFFFF) : count <= 0 ? __mmask16(0) : __mmask16((1u << count) - 1);
}

__m512 load_f16(const std::byte* table, int64_t at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(table + 2 * at)));
}
__m512 load_i16(const std::byte* table, int64_t at) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(table + 2 * at))));
}

// Rows that are computed together, over the pages of one split.
class Tile {
 public:
  Tile(const AttentionBlock& block, int64_t first_page, int64_t last_page)
      : block_(block), layout_(*block.layout), first_page_(first_page), last_page_(last_page) {}

  template <int R, bool kNibbles>
  void run(int64_t row, const AttentionState& state) {
    row_ = row;
    // No row of the tile sees later pages.
    const int64_t end = seen_tokens(block_, block_.position + (row + R - 1) / block_.group).last;
    pages_ = std::min(last_page_, (end + kPageTokens - 1) / kPageTokens) - first_page_;
    for (int r = 0; r < R; ++r) {
      state.largest[row + r] = -std::numeric_limits<float>::infinity();
      state.sum[row + r] = 0;
    }
    if (pages_ <= 0) return;
    for (int r = 0; r < R; ++r) take_query(r);
    for (int64_t page = 0; page < pages_; ++page) scores<R, kNibbles>(page);
    for (int r = 0; r < R; ++r) softmax(r, state);
    const int64_t groups = layout_.groups;
    for (int64_t g = 0; g < groups; ++g) {
      take_values(g);
      for (int r = 0; r < R; ++r) take_weights(r, g, state);
      const int64_t begin = groups == 1 ? 0 : g * layout_.group;
      const int64_t end = g + 1 == groups ? layout_.padded_dim : begin + layout_.group;
      for (int64_t column = begin; column < end; column += 2 * kVector) values<R, kNibbles>(column, state);
    }
  }

 private:
  const std::byte* head(int64_t page) const {
    return block_.pages[first_page_ + page] + layout_.offset +
           static_cast<size_t>(block_.head) * layout_.head_bytes;
  }

  // Bytes to what is wanted kAhead pages later, the next head's first pages after this one's last: a page is
  // used up faster than memory answers, and is too short for the processor's own prefetching.
  int64_t ahead(int64_t page) const {
    const int64_t pages = (block_.position + (block_.rows - 1) / block_.group) / kPageTokens + 1;
    const int64_t next = first_page_ + page + kAhead;
    if (next >= 2 * pages) return 0;
    const std::byte* wanted = block_.pages[next % pages] + layout_.offset +
                              static_cast<size_t>(block_.head + next / pages) * layout_.head_bytes;
    return wanted - head(page);
  }

  void take_query(int r) {
    const float* query = block_.query + (row_ + r) * layout_.head_dim;
    __m512 largest = _mm512_setzero_ps(), odd = largest;
    for (int64_t d = 0; d < layout_.head_dim; d += kVector) {
      const __m512 x = _mm512_maskz_loadu_ps(lanes_below(layout_.head_dim - d), query + d);
      largest = _mm512_max_ps(largest, _mm512_abs_ps(x));
      odd = _mm512_add_ps(odd, _mm512_sub_ps(x, x));  // 0, or NaN for NaN and infinity
    }
    const float top = _mm512_reduce_max_ps(largest);
    broken_[r] = !(_mm512_reduce_add_ps(odd) == 0);
    const float step = broken_[r] || top == 0 ? 1.0f : std::max(top / kLargestInteger, 0x1p-120f);
    const __m512 inverse = _mm512_set1_ps(1.0f / step), bound = _mm512_set1_ps(kLargestInteger);
    for (int64_t g = 0; g < layout_.groups; ++g) query_sum_[r][g] = 0;
    for (int64_t d = 0; d < layout_.padded_dim; d += kVector) {
      __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes_below(layout_.head_dim - d), query + d), inverse);
      x = _mm512_min_ps(_mm512_max_ps(x, _mm512_sub_ps(_mm512_setzero_ps(), bound)), bound);
      const __m512i integer = store_bytes(x, query_h_[r] + d, query_l_[r] + d);
      const int64_t g = layout_.groups == 1 ? 0 : std::min(d / layout_.group, layout_.groups - 1);
      query_sum_[r][g] += static_cast<float>(_mm512_reduce_add_epi32(integer));
    }
    multiplier_[r] = step * block_.scale * 1.44269504f;  // scores to base 2
    top_[r] = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  }

  // Scores of one page, to base 2, -infinity where a row does not see the token.
  template <int R, bool kNibbles>
  void scores(int64_t page) {
    const std::byte* keys = head(page);
    const auto* codes = reinterpret_cast<const uint8_t*>(keys);
    constexpr int64_t kWord = kPageTokens * (kNibbles ? 2 : 4);  // bytes of 4 columns of all tokens
    const int64_t base = (first_page_ + page) * kPageTokens;
    for (int64_t t = 0; t < kPageTokens; t += 2 * kVector) {
      for (int64_t g = 0; g < layout_.groups; ++g) {
        const int64_t begin = g * layout_.group / 4;
        const int64_t end = g + 1 == layout_.groups ? layout_.key_dim / 4 : begin + layout_.group / 4;
        Sums<R> sums;
        clear(sums);
        add<R, kNibbles>(sums, codes + begin * kWord + (kNibbles ? t * 2 : t * 4), kWord, end - begin,
                         query_h_[0] + begin * 4, query_l_[0] + begin * 4, kMostDim, ahead(page));
#pragma GCC unroll 2
        for (int o = 0; o < 2; ++o) {
          const int64_t at = g * kPageTokens + t + o * kVector;
          const __m512 scale = load_f16(keys + layout_.key_scale, at);
          const __m512 zero = load_i16(keys + layout_.key_zero, at);
#pragma GCC unroll 6
          for (int r = 0; r < R; ++r) {
            float* out = score_[r] + page * kPageTokens + t + o * kVector;
            __m512 sum = _mm512_fnmadd_ps(zero, _mm512_set1_ps(query_sum_[r][g]), value_of(sums.acc[r][o]));
            sum = _mm512_mul_ps(sum, _mm512_mul_ps(scale, _mm512_set1_ps(multiplier_[r])));
            if (g > 0) sum = _mm512_add_ps(sum, _mm512_load_ps(out));
            _mm512_store_ps(out, sum);
          }
        }
      }
      for (int r = 0; r < R; ++r) {
        const SeenTokens seen_by_row = seen_tokens(block_, block_.position + (row_ + r) / block_.group);
        const int64_t end = seen_by_row.last - base, begin = seen_by_row.first - base;
        for (int o = 0; o < 2; ++o) {
          float* out = score_[r] + page * kPageTokens + t + o * kVector;
          const int64_t first = t + o * kVector;
          __m512 score = _mm512_load_ps(out);
          if (end < first + kVector || begin > first) {
            const __mmask16 seen = lanes_below(end - first) & ~lanes_below(begin - first);
            score = _mm512_mask_mov_ps(_mm512_set1_ps(-std::numeric_limits<float>::infinity()), seen, score);
            _mm512_store_ps(out, score);
          }
          top_[r] = _mm512_max_ps(top_[r], score);
        }
      }
    }
  }

  // Scores become weights 2^(score - largest).
  void softmax(int r, const AttentionState& state) {
    const float top = _mm512_reduce_max_ps(top_[r]);
    empty_[r] = broken_[r] || top == -std::numeric_limits<float>::infinity();
    if (broken_[r]) {
      state.largest[row_ + r] = 0;
      state.sum[row_ + r] = std::numeric_limits<float>::quiet_NaN();
    }
    if (empty_[r]) return;
    for (int64_t t = 0; t < pages_ * kPageTokens; t += kVector)
      _mm512_store_ps(score_[r] + t,
                      power_of_two(_mm512_sub_ps(_mm512_load_ps(score_[r] + t), _mm512_set1_ps(top))));
    state.largest[row_ + r] = top * 0.693147181f;
  }

  // Weights times the values' scales as integers, and what they add up to. Sum and zeros are those of the
  // rounded weights, so that rounding moves weight between tokens but makes or loses none.
  void take_weights(int r, int64_t g, const AttentionState& state) {
    if (empty_[r]) {
      __builtin_memset(weight_h_[r], 0, sizeof weight_h_[r]);
      __builtin_memset(weight_l_[r], 0, sizeof weight_l_[r]);
      weight_step_[r] = weight_zero_[r] = 0;
      return;
    }
    __m512 largest = _mm512_setzero_ps(), zeros = largest, sum = largest;
    for (int64_t t = 0; t < pages_ * kPageTokens; t += kVector) {
      const __m512 weight = _mm512_mul_ps(_mm512_load_ps(score_[r] + t), _mm512_load_ps(value_scale_ + t));
      largest = _mm512_max_ps(largest, weight);
      _mm512_store_ps(scaled_ + t, weight);
    }
    const float step = std::max(_mm512_reduce_max_ps(largest), 0x1p-100f) / kLargestInteger;
    const __m512 inverse = _mm512_set1_ps(1.0f / step);
    for (int64_t t = 0; t < pages_ * kPageTokens; t += kVector) {
      const __m512 weight = _mm512_cvtepi32_ps(store_bytes(
          _mm512_min_ps(_mm512_mul_ps(_mm512_load_ps(scaled_ + t), inverse), _mm512_set1_ps(kLargestInteger)),
          weight_h_[r] + t, weight_l_[r] + t));
      zeros = _mm512_fmadd_ps(weight, _mm512_load_ps(value_zero_ + t), zeros);
      sum = _mm512_fmadd_ps(weight, _mm512_load_ps(value_inverse_ + t), sum);
    }
    weight_step_[r] = step;
    weight_zero_[r] = step * _mm512_reduce_add_ps(zeros);
    // With several groups each has its own rounding; the first one's sum serves all.
    if (g == 0) state.sum[row_ + r] = step * _mm512_reduce_add_ps(sum);
  }

  // Scales, their inverses and zeros of a group's values, for all rows.
  void take_values(int64_t g) {
    for (int64_t page = 0; page < pages_; ++page)
      for (int64_t t = 0; t < kPageTokens; t += kVector) {
        const std::byte* part = head(page);
        const __m512 scale = load_f16(part + layout_.value_scale, g * kPageTokens + t);
        const int64_t at = page * kPageTokens + t;
        _mm512_store_ps(value_scale_ + at, scale);
        // Slots without a token have scale 0 and weight 0.
        _mm512_store_ps(value_inverse_ + at,
                        _mm512_div_ps(_mm512_set1_ps(1), _mm512_max_ps(scale, _mm512_set1_ps(0x1p-24f))));
        _mm512_store_ps(value_zero_ + at, load_i16(part + layout_.value_zero, g * kPageTokens + t));
      }
  }

  template <int R, bool kNibbles>
  void values(int64_t column, const AttentionState& state) {
    constexpr int64_t kTokens = 4;  // of a word
    const int64_t word = layout_.padded_dim * (kNibbles ? 2 : 4);
    Sums<R> sums;
    clear(sums);
    for (int64_t page = 0; page < pages_; ++page)
      add<R, kNibbles>(
          sums, reinterpret_cast<const uint8_t*>(head(page) + layout_.values) + column * (kNibbles ? 2 : 4),
          word, kPageTokens / kTokens, weight_h_[0] + page * kPageTokens, weight_l_[0] + page * kPageTokens,
          kMostTokens, ahead(page));
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int o = 0; o < 2; ++o)
        _mm512_storeu_ps(state.values + (row_ + r) * layout_.padded_dim + column + o * kVector,
                         _mm512_fmsub_ps(value_of(sums.acc[r][o]), _mm512_set1_ps(weight_step_[r]),
                                         _mm512_set1_ps(weight_zero_[r])));
  }

  const AttentionBlock& block_;
  const KvLayout& layout_;
  int64_t first_page_, last_page_;
  int64_t row_ = 0, pages_ = 0;
  bool broken_[kTileRows] = {},
       empty_[kTileRows] = {};  // a query that is not finite; a row that sees nothing
  float multiplier_[kTileRows], weight_step_[kTileRows], weight_zero_[kTileRows];
  float query_sum_[kTileRows][kMostDim / 32];
  __m512 top_[kTileRows];
  alignas(64) int8_t query_h_[kTileRows][kMostDim], query_l_[kTileRows][kMostDim];
  alignas(64) int8_t weight_h_[kTileRows][kMostTokens], weight_l_[kTileRows][kMostTokens];
  alignas(64) float score_[kTileRows][kMostTokens];
  alignas(64) float scaled_[kMostTokens];
  alignas(64) float value_scale_[kMostTokens], value_inverse_[kMostTokens], value_zero_[kMostTokens];
};

template <bool kNibbles, int R = kTileRows>
void run_rows(Tile& tile, int64_t row, int64_t rows, const AttentionState& state) {
  if (rows == R) return tile.run<R, kNibbles>(row, state);
  if constexpr (R > 1) run_rows<kNibbles, R - 1>(tile, row, rows, state);
}

}  // namespace

bool attends_codes_avx512vnni(const KvLayout& layout) {
  return layout.bits != 16 && (layout.groups == 1 || layout.group % (2 * kVector) == 0);
}

void attend_codes_avx512vnni(const AttentionBlock& block, int64_t first, int64_t last,
                             const AttentionState& state) {
  Tile tile(block, first, last);
  for (int64_t row = 0; row < block.rows; row += kTileRows) {
    const int64_t rows = std::min<int64_t>(kTileRows, block.rows - row);
    if (block.layout->bits == 4)
      run_rows<true>(tile, row, rows, state);
    else
      run_rows<false>(tile, row, rows, state);
  }
}

}  // namespace quatrain::ops
