#include "ops/cpu/nibble_panels_256.h"

namespace quatrain::ops {
namespace {

// A read-write operand that is a variable of its own: see nibble_panels_avx512vnni.cpp.
inline __attribute__((always_inline)) __m256i dot(__m256i acc, __m256i codes, __m256i weights) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(codes), "x"(weights));
  return acc;
}

struct VnniDot {
  struct Weights {
    static constexpr bool kHasLo = false;
    __m256i first, second;
    explicit Weights(__m256i hi) {
      const __m256i high = _mm256_set1_epi8(static_cast<char>(0xF0));
      first = _mm256_and_si256(hi, high);
      second = _mm256_and_si256(_mm256_slli_epi16(hi, 4), high);
    }
    __m256i add(__m256i acc, __m256i a, __m256i b) const { return dot(dot(acc, a, first), b, second); }
  };
  struct WeightsWithLo : Weights {
    static constexpr bool kHasLo = true;
    WeightsWithLo(__m256i hi, __m256i lo) : Weights(hi) {
      const __m256i low = _mm256_set1_epi8(0x0F);
      first = _mm256_or_si256(first, _mm256_and_si256(lo, low));
      second = _mm256_or_si256(second, _mm256_and_si256(_mm256_srli_epi16(lo, 4), low));
    }
  };
};

}  // namespace

void nibble_panels_avxvnni(const NibblePanels& weights, const NibbleTokens& x, int64_t begin, int64_t end,
                           const NibbleResults& out) {
  nibble_panels_256<VnniDot>(weights, x, begin, end, out);
}

}  // namespace quatrain::ops
