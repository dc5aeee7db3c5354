#include <immintrin.h>

#include <algorithm>
#include <limits>

#include "ops/attention.h"
#include "ops/cpu/attention_codes.h"

namespace quatrain::ops {
namespace {

constexpr int kBytes = 3;     // of a query's value or a softmax weight
constexpr int kTileRows = 4;  // 24 accumulators, 2 operands, a mask and a load in 32 registers
constexpr int64_t kAhead = 8;
constexpr int kVector = 16;  // tokens or columns of an accumulator
constexpr int64_t kMostTokens = kSplitPages * kPageTokens;
constexpr int64_t kMostDim = 1024;
// Queries and weights are integers 65536 b0 + 256 b1 + b2 of signed bytes: their products with 4- or 8-bit
// codes are three integer dot products, and their rounding (2^-24 of the largest) is that of an FP32 sum.
// With two bytes codes at ties, and tokens with them, change more often than with another order of FP32 sums.
// Values lie in words of four: 16 bytes that hold byte 2 of each, then byte 1, byte 0, and nothing of use.
constexpr float kLargestInteger = 8355700;  // all bytes 127 is 8355711; a product with 1 / step rounds
constexpr int64_t kWordBytes = 16;

// The intrinsic makes g++ 12 copy accumulators, as in nibble_panels_avx512vnni.cpp.
inline __attribute__((always_inline)) __m512i dot(__m512i acc, __m512i codes, __m512i bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(codes), "v"(bytes));
  return acc;
}

inline __attribute__((always_inline)) __m512i broadcast(const int8_t* bytes) {
  int word;
  __builtin_memcpy(&word, bytes, sizeof word);
  return _mm512_set1_epi32(word);
}

// Sums of R rows over words of codes: [row][operand][byte], an operand being 16 words' sums.
template <int R>
struct Sums {
  __m512i acc[R][2][kBytes];
};

template <int R>
inline __attribute__((always_inline)) void clear(Sums<R>& sums) {
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
    for (int o = 0; o < 2; ++o)
      for (int b = 0; b < kBytes; ++b) sums.acc[r][o][b] = _mm512_setzero_si512();
}

// Adds `words` steps: operand o of step w lies at codes + w * step (4 bits: both in one vector), word w of
// row r at bytes + r * stride + w * kWordBytes. What lies `ahead` bytes further on than the codes is
// prefetched.
template <int R, bool kNibbles>
inline __attribute__((always_inline)) void add(Sums<R>& sums, const uint8_t* codes, int64_t step,
                                               int64_t words, const int8_t* bytes, int64_t stride,
                                               int64_t ahead) {
  const __m512i low = _mm512_set1_epi8(15);
  for (int64_t w = 0; w < words; ++w, codes += step, bytes += kWordBytes) {
    __m512i operand[2];
    operand[0] = _mm512_loadu_si512(codes);
    _mm_prefetch(reinterpret_cast<const char*>(codes) + ahead, _MM_HINT_T1);
    if constexpr (kNibbles) {
      operand[1] = _mm512_and_si512(_mm512_srli_epi16(operand[0], 4), low);
      operand[0] = _mm512_and_si512(operand[0], low);
    } else {
      operand[1] = _mm512_loadu_si512(codes + 64);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 3
      for (int b = 0; b < kBytes; ++b) {
        const __m512i word = broadcast(bytes + r * stride + 4 * (kBytes - 1 - b));
        sums.acc[r][0][b] = dot(sums.acc[r][0][b], operand[0], word);
        sums.acc[r][1][b] = dot(sums.acc[r][1][b], operand[1], word);
      }
  }
}

inline __m512 combine(__m512 b0, __m512 b1, __m512 b2) {
  return _mm512_fmadd_ps(b0, _mm512_set1_ps(65536), _mm512_fmadd_ps(b1, _mm512_set1_ps(256), b2));
}

// Four words of rint(x), |x| <= kLargestInteger. A bias of 128 in every byte keeps carries out: b + 128 is
// the byte of the biased integer, and b its complement in the top bit.
inline __m512i words_of(__m512 x) {
  const __m512i bias = _mm512_set1_epi32(0x00808080);
  const __m512i bytes = _mm512_xor_si512(_mm512_add_epi32(_mm512_cvtps_epi32(x), bias), bias);
  return _mm512_shuffle_epi8(
      bytes, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)));
}

// The sums of four words' bytes, byte 0 first.
inline void sums_of(__m512i words, int32_t* sums) {
  const __m256i halves = _mm256_add_epi32(_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64(words, 1));
  alignas(16) int32_t sum[4];
  _mm_store_si128(reinterpret_cast<__m128i*>(sum),
                  _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
  for (int b = 0; b < kBytes; ++b) sums[b] = sum[kBytes - 1 - b];
}

// 2^(i / 16)
alignas(64) constexpr float kPowers[16] = {
    1.0f,        1.04427378f, 1.09050773f, 1.13878863f, 1.18920712f, 1.24185781f, 1.29683955f, 1.35425555f,
    1.41421356f, 1.47682615f, 1.54221083f, 1.61049033f, 1.68179283f, 1.75625216f, 1.83400809f, 1.91520656f};

// 2^x, x <= 0, as 2^m 2^(i / 16) 2^r, |r| <= 1/32: a series of degree 3, within 1e-8 before rounding; the
// chain of a polynomial alone would be twice as long. 2^-100 from there down, which is nothing beside the
// largest weight, 1.
inline __m512 power_of_two(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-100));
  // The sum's last bit is 1 / 16; r and the subtractions before it are exact.
  const __m512 shift = _mm512_set1_ps(0x1.8p19f);
  const __m512 shifted = _mm512_add_ps(x, shift);
  const __m512 r = _mm512_sub_ps(x, _mm512_sub_ps(shifted, shift));
  const __m512i n = _mm512_castps_si512(shifted);  // 16 m + i in its low bits
  const __m512 power = _mm512_permutexvar_ps(n, _mm512_load_ps(kPowers));
  const __m512i m = _mm512_slli_epi32(_mm512_srli_epi32(n, 4), 23);
  const __m512 scaled = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(power), m));
  __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(5.55041087e-2f), _mm512_set1_ps(2.40226507e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.93147182e-1f));
  return _mm512_fmadd_ps(_mm512_mul_ps(p, r), scaled, scaled);
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

// The pages of one split, and the rows that are computed together on them.
class Tile {
 public:
  Tile(const AttentionBlock& block, int64_t first_page, int64_t last_page)
      : block_(block), layout_(*block.layout), first_page_(first_page), last_page_(last_page) {
    for (int64_t page = 0; page < last_page - first_page; ++page) ahead_[page] = ahead(page);
    if (layout_.groups == 1) take_values(0);
  }

  template <int R, bool kNibbles>
  void run(int64_t row, const AttentionState& state) {
    row_ = row;
    // No row of the tile sees later tokens.
    const int64_t end = seen_tokens(block_, block_.position + (row + R - 1) / block_.group).last;
    tokens_ = std::min(last_page_ * kPageTokens, end) - first_page_ * kPageTokens;
    for (int r = 0; r < R; ++r) {
      state.largest[row + r] = -std::numeric_limits<float>::infinity();
      state.sum[row + r] = 0;
    }
    if (tokens_ <= 0) {
      std::fill_n(state.values + row * layout_.padded_dim, R * layout_.padded_dim, 0.0f);
      return;
    }
    for (int r = 0; r < R; ++r) {
      const SeenTokens seen = seen_tokens(block_, block_.position + (row + r) / block_.group);
      begin_[r] = seen.first - first_page_ * kPageTokens;
      end_[r] = seen.last - first_page_ * kPageTokens;
    }
    take_queries<R>();
    for (int64_t t = 0; t < tokens_; t += kStep) scores<R, kNibbles>(t);
    softmax<R>(state);
    const int64_t groups = layout_.groups;
    for (int64_t g = 0; g < groups; ++g) {
      if (groups > 1) take_values(g);
      take_weights<R>();
      const int64_t begin = groups == 1 ? 0 : g * layout_.group;
      const int64_t end = g + 1 == groups ? layout_.padded_dim : begin + layout_.group;
      for (int64_t column = begin; column < end; column += kStep) values<R, kNibbles>(column, state);
    }
  }

 private:
  static constexpr int64_t kStep = 2 * kVector;  // tokens or columns of two operands

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

  // The rows side by side, here too.
  template <int R>
  void take_queries() {
    const float* query = block_.query + row_ * layout_.head_dim;
    const int64_t dim = layout_.head_dim;
    constexpr int kNotFinite = 0x99;
    __m512 largest[R], inverse[R];
    __mmask16 odd[R];
    __m512i sum[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) largest[r] = _mm512_setzero_ps(), odd[r] = 0;
    for (int64_t d = 0; d < dim; d += kVector) {
      const __mmask16 lanes = lanes_below(dim - d);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const __m512 x = _mm512_maskz_loadu_ps(lanes, query + r * dim + d);
        largest[r] = _mm512_max_ps(largest[r], _mm512_abs_ps(x));
        odd[r] |= _mm512_fpclass_ps_mask(x, kNotFinite);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const float top = _mm512_reduce_max_ps(largest[r]);
      broken_[r] = odd[r] != 0;
      const float step = broken_[r] || top == 0 ? 1.0f : std::max(top / kLargestInteger, 0x1p-120f);
      inverse[r] = _mm512_set1_ps(1.0f / step);
      multiplier_[r] = step * block_.scale * 1.44269504f;  // scores to base 2
      top_[r] = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
      sum[r] = _mm512_setzero_si512();
    }
    for (int64_t d = 0, g = 0; d < layout_.padded_dim; d += kVector) {
      const __mmask16 lanes = lanes_below(dim - d);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const __m512i words =
            words_of(_mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, query + r * dim + d), inverse[r]));
        _mm512_store_si512(query_[r] + d / 4 * kWordBytes, words);
        sum[r] = _mm512_dpbusd_epi32(sum[r], _mm512_set1_epi8(1), words);
      }
      const int64_t next = d + kVector;
      if (next < layout_.padded_dim && (g + 1 == layout_.groups || next % layout_.group != 0)) continue;
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        int32_t sums[kBytes];
        sums_of(sum[r], sums);
        for (int b = 0; b < kBytes; ++b) query_sum_[r][g][b] = static_cast<float>(sums[b]);
        low_query_sum_[r][g] = static_cast<float>(256 * sums[1] + sums[2]);
        sum[r] = _mm512_setzero_si512();
      }
      ++g;
    }
  }

  // Scores of tokens [t, t + kStep) of the split, to base 2, -infinity where a row does not see the token.
  // Every byte's sum less its zeros is exact.
  template <int R, bool kNibbles>
  void scores(int64_t t) {
    const int64_t page = t / kPageTokens, slot = t % kPageTokens;
    const std::byte* keys = head(page);
    const auto* codes = reinterpret_cast<const uint8_t*>(keys);
    constexpr int64_t kWord = kPageTokens * (kNibbles ? 2 : 4);  // bytes of 4 columns of all tokens
    for (int64_t g = 0; g < layout_.groups; ++g) {
      const int64_t begin = g * layout_.group / 4;
      const int64_t end = g + 1 == layout_.groups ? layout_.key_dim / 4 : begin + layout_.group / 4;
      Sums<R> sums;
      clear(sums);
      add<R, kNibbles>(sums, codes + begin * kWord + slot * (kNibbles ? 2 : 4), kWord, end - begin,
                       query_[0] + begin * kWordBytes, sizeof query_[0], ahead_[page]);
#pragma GCC unroll 2
      for (int o = 0; o < 2; ++o) {
        const int64_t at = g * kPageTokens + slot + o * kVector;
        const __m512 scale = load_f16(keys + layout_.key_scale, at);
        const __m512 zero = load_i16(keys + layout_.key_zero, at);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          float* out = score_[r] + t + o * kVector;
          const auto part = [&](int b) {
            return _mm512_fnmadd_ps(zero, _mm512_set1_ps(query_sum_[r][g][b]),
                                    _mm512_cvtepi32_ps(sums.acc[r][o][b]));
          };
          __m512 sum;
          if constexpr (kNibbles) {  // sums below 2^29, of which FP32 keeps more than the last byte matters
            const __m512i low = _mm512_add_epi32(_mm512_slli_epi32(sums.acc[r][o][1], 8), sums.acc[r][o][2]);
            sum = _mm512_fmadd_ps(
                part(0), _mm512_set1_ps(65536),
                _mm512_fnmadd_ps(zero, _mm512_set1_ps(low_query_sum_[r][g]), _mm512_cvtepi32_ps(low)));
          } else {
            sum = combine(part(0), part(1), part(2));
          }
          sum = _mm512_mul_ps(sum, _mm512_mul_ps(scale, _mm512_set1_ps(multiplier_[r])));
          if (g > 0) sum = _mm512_add_ps(sum, _mm512_load_ps(out));
          const int64_t first = t + o * kVector;
          if (g + 1 == layout_.groups) {
            if (end_[r] < first + kVector || begin_[r] > first)
              sum = _mm512_mask_mov_ps(_mm512_set1_ps(-std::numeric_limits<float>::infinity()),
                                       lanes_below(end_[r] - first) & ~lanes_below(begin_[r] - first), sum);
            top_[r] = _mm512_max_ps(top_[r], sum);
          }
          _mm512_store_ps(out, sum);
        }
      }
    }
  }

  // Scores become weights 2^(score - largest), and where one scale holds for all columns of a value, weights
  // times scales. The rows side by side cover each other's latency.
  template <int R>
  void softmax(const AttentionState& state) {
    __m512 top[R], sum[R], largest[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const float highest = _mm512_reduce_max_ps(top_[r]);
      empty_[r] = broken_[r] || highest == -std::numeric_limits<float>::infinity();
      if (!empty_[r]) state.largest[row_ + r] = highest * 0.693147181f;
      top[r] = _mm512_set1_ps(empty_[r] ? 0.0f : highest);
      sum[r] = largest[r] = _mm512_setzero_ps();
    }
    const bool is_scaled = layout_.groups == 1;
    for (int64_t t = 0; t < tokens_; t += kVector) {
      const __m512 scale = is_scaled ? _mm512_load_ps(value_scale_ + t) : _mm512_set1_ps(1);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const __m512 weight = power_of_two(_mm512_sub_ps(_mm512_load_ps(score_[r] + t), top[r]));
        sum[r] = _mm512_add_ps(sum[r], weight);
        const __m512 scaled = _mm512_mul_ps(weight, scale);
        largest[r] = _mm512_max_ps(largest[r], scaled);
        _mm512_store_ps(score_[r] + t, scaled);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      if (!empty_[r]) state.sum[row_ + r] = _mm512_reduce_add_ps(sum[r]);
      largest_[r] = _mm512_reduce_max_ps(largest[r]);
      if (!broken_[r]) continue;
      state.largest[row_ + r] = 0;
      state.sum[row_ + r] = std::numeric_limits<float>::quiet_NaN();
    }
  }

  // Weights times the values' scales as integers, and the sum of each byte times the zeros.
  template <int R>
  void take_weights() {
    const bool is_scaled = layout_.groups == 1;
    const auto scaled = [&](int r, int64_t t) {
      const __m512 weight = _mm512_load_ps(score_[r] + t);
      return is_scaled ? weight : _mm512_mul_ps(weight, _mm512_load_ps(value_scale_ + t));
    };
    __m512 inverse[R];
    __m512i low[R], high[R], bias[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      if (!is_scaled) {
        __m512 largest = _mm512_setzero_ps();
        for (int64_t t = 0; t < tokens_; t += kVector) largest = _mm512_max_ps(largest, scaled(r, t));
        largest_[r] = _mm512_reduce_max_ps(largest);
      }
      weight_step_[r] = std::max(largest_[r], 0x1p-100f) / kLargestInteger;
      inverse[r] = _mm512_set1_ps(1.0f / weight_step_[r]);
      low[r] = high[r] = bias[r] = _mm512_setzero_si512();
    }
    for (int64_t t = 0; t < tokens_; t += kVector) {
      const int64_t at = t / 4 * kWordBytes;
      __m512i words[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        words[r] = words_of(_mm512_mul_ps(scaled(r, t), inverse[r]));
        _mm512_store_si512(weight_[r] + at, words[r]);
        low[r] = _mm512_dpbusd_epi32(low[r], _mm512_load_si512(zero_low_ + at), words[r]);
      }
      if (!far_zeros_) continue;
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        high[r] = _mm512_dpbusd_epi32(high[r], _mm512_load_si512(zero_high_ + at), words[r]);
        bias[r] = _mm512_dpbusd_epi32(bias[r], _mm512_set1_epi8(static_cast<char>(128)), words[r]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      sums_of(_mm512_add_epi32(low[r], _mm512_slli_epi32(_mm512_sub_epi32(high[r], bias[r]), 8)),
              weight_zero_[r]);
      if (empty_[r]) weight_step_[r] = 0;  // whatever the integers are
    }
  }

  // Scales and zeros of a group's values. A zero is low + 256 (high - 128) of unsigned bytes, which lie as
  // the words of the weights that they meet.
  void take_values(int64_t g) {
    const __m512i quadruple =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12));
    __m512i far = _mm512_setzero_si512();
    for (int64_t page = 0; page < last_page_ - first_page_; ++page)
      for (int64_t t = 0; t < kPageTokens; t += kVector) {
        const std::byte* part = head(page);
        const int64_t at = g * kPageTokens + t, to = page * kPageTokens + t;
        _mm512_store_ps(value_scale_ + to, load_f16(part + layout_.value_scale, at));
        const __m512i zero = _mm512_cvtepi16_epi32(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(part + layout_.value_zero + 2 * at)));
        const __m512i high = _mm512_srai_epi32(zero, 8);
        far = _mm512_or_si512(far, high);
        _mm512_store_si512(zero_low_ + to / 4 * kWordBytes, _mm512_shuffle_epi8(zero, quadruple));
        _mm512_store_si512(zero_high_ + to / 4 * kWordBytes,
                           _mm512_shuffle_epi8(_mm512_add_epi32(high, _mm512_set1_epi32(128)), quadruple));
      }
    far_zeros_ = _mm512_test_epi32_mask(far, far) != 0;
  }

  template <int R, bool kNibbles>
  void values(int64_t column, const AttentionState& state) {
    constexpr int64_t kTokens = 4;  // of a word
    const int64_t word = layout_.padded_dim * (kNibbles ? 2 : 4);
    Sums<R> sums;
    clear(sums);
    for (int64_t t = 0; t < tokens_; t += kPageTokens) {
      const int64_t page = t / kPageTokens,
                    words = (std::min(kPageTokens, tokens_ - t) + kTokens - 1) / kTokens;
      add<R, kNibbles>(
          sums, reinterpret_cast<const uint8_t*>(head(page) + layout_.values) + column * (kNibbles ? 2 : 4),
          word, words, weight_[0] + t / kTokens * kWordBytes, sizeof weight_[0], ahead_[page]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int o = 0; o < 2; ++o) {
        const auto part = [&](int b) {
          return _mm512_cvtepi32_ps(
              _mm512_sub_epi32(sums.acc[r][o][b], _mm512_set1_epi32(weight_zero_[r][b])));
        };
        _mm512_storeu_ps(state.values + (row_ + r) * layout_.padded_dim + column + o * kVector,
                         _mm512_mul_ps(combine(part(0), part(1), part(2)), _mm512_set1_ps(weight_step_[r])));
      }
  }

  const AttentionBlock& block_;
  const KvLayout& layout_;
  int64_t first_page_, last_page_;
  int64_t ahead_[kSplitPages];
  int64_t row_ = 0, tokens_ = 0;               // of the split, that some row of the tile sees
  int64_t begin_[kTileRows], end_[kTileRows];  // tokens of the split that a row sees
  bool broken_[kTileRows] = {},
       empty_[kTileRows] = {};  // a query that is not finite; a row that sees nothing
  float multiplier_[kTileRows], weight_step_[kTileRows], largest_[kTileRows];
  int32_t weight_zero_[kTileRows][kBytes];
  float query_sum_[kTileRows][kMostDim / 32][kBytes];
  float low_query_sum_[kTileRows][kMostDim / 32];  // of bytes 1 and 2 together
  __m512 top_[kTileRows];
  bool far_zeros_ = false;  // some zero of the values is no unsigned byte
  alignas(64) int8_t query_[kTileRows][kMostDim / 4 * kWordBytes];
  alignas(64) int8_t weight_[kTileRows][kMostTokens / 4 * kWordBytes];
  alignas(64) float score_[kTileRows][kMostTokens];
  alignas(64) float value_scale_[kMostTokens];
  alignas(64) uint8_t zero_low_[kMostTokens / 4 * kWordBytes], zero_high_[kMostTokens / 4 * kWordBytes];
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
