#include "ops/cpu/nibble_panels_256.h"

namespace quatrain::ops {
namespace {

// maddubs saturates at 16 bits: a pair of A8 codes against 16 hi + lo reaches 65,280. So hi in [-8, 7] and lo
// in [0, 15] are multiplied apart: two pairs reach 2 * 2 * 255 * 8 = 8,160 and 2 * 2 * 255 * 15 = 15,300. The
// factor 16 of hi comes with the widening to 32 bits.
struct MaddDot {
  struct Weights {
    static constexpr bool kHasLo = false;
    __m256i first, second;  // hi of columns 0..3 and 4..7
    explicit Weights(__m256i hi) {
      const __m256i low = _mm256_set1_epi8(0x0F);
      const __m256i signed_nibble =
          _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1));
      first = _mm256_shuffle_epi8(signed_nibble, _mm256_and_si256(_mm256_srli_epi16(hi, 4), low));
      second = _mm256_shuffle_epi8(signed_nibble, _mm256_and_si256(hi, low));
    }
    __m256i add(__m256i acc, __m256i a, __m256i b) const {
      const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(a, first), _mm256_maddubs_epi16(b, second));
      return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(16)));
    }
  };
  struct WeightsWithLo : Weights {
    static constexpr bool kHasLo = true;
    __m256i first_lo, second_lo;
    WeightsWithLo(__m256i hi, __m256i lo) : Weights(hi) {
      const __m256i low = _mm256_set1_epi8(0x0F);
      first_lo = _mm256_and_si256(lo, low);
      second_lo = _mm256_and_si256(_mm256_srli_epi16(lo, 4), low);
    }
    __m256i add(__m256i acc, __m256i a, __m256i b) const {
      acc = Weights::add(acc, a, b);
      const __m256i pairs =
          _mm256_add_epi16(_mm256_maddubs_epi16(a, first_lo), _mm256_maddubs_epi16(b, second_lo));
      return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
  };
};

}  // namespace

void nibble_panels_avx2(const NibblePanels& weights, const NibbleTokens& x, int64_t begin, int64_t end,
                        const NibbleResults& out) {
  nibble_panels_256<MaddDot>(weights, x, begin, end, out);
}

}  // namespace quatrain::ops
