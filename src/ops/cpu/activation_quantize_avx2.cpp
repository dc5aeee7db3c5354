#include <immintrin.h>

#include "base/number_format.h"
#include "ops/cpu/activation_quantize_row.h"

namespace quatrain::ops {
namespace {

float reduce_min(__m256 v) {
  __m128 m = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_min_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_min_ss(m, _mm_shuffle_ps(m, m, 1)));
}

float reduce_max(__m256 v) {
  return -reduce_min(_mm256_xor_ps(v, _mm256_set1_ps(-0.0f)));
}

// The first `count` (1..7) lanes are read, the others are 0.
__m256i tail_mask(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

}  // namespace

bool quantize_row_avx2(const QuantizeRowArguments& row) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 largest = _mm256_set1_ps(__FLT_MAX__);
  for (int64_t first = 0, g = 0; first < row.width; first += row.group, ++g) {
    const float* x = row.x + first;
    const int64_t count = row.group < row.width - first ? row.group : row.width - first;
    const int64_t whole = count & ~int64_t{7};
    __m256 low = _mm256_set1_ps(x[0]), high = low;
    __m256 odd = _mm256_setzero_ps();  // lanes that met NaN or infinity: |x| <= FLT_MAX fails
    for (int64_t i = 0; i < count; i += 8) {
      __m256 v;
      if (i < whole) {
        v = _mm256_loadu_ps(x + i);
      } else {
        const __m256i mask = tail_mask(count - i);
        v = _mm256_blendv_ps(low, _mm256_maskload_ps(x + i, mask), _mm256_castsi256_ps(mask));
      }
      odd = _mm256_or_ps(odd, _mm256_cmp_ps(_mm256_andnot_ps(sign, v), largest, _CMP_NLE_UQ));
      low = _mm256_min_ps(low, v);
      high = _mm256_max_ps(high, v);
    }
    if (_mm256_movemask_ps(odd) != 0) return false;
    const QuantizedGroup group =
        quantization_of_range(reduce_min(low), reduce_max(high), row.bits, row.symmetric, row.group);
    row.scale[g] = group.scale;
    row.zero[g] = static_cast<int16_t>(group.zero);
    const __m256 scale = _mm256_set1_ps(group.scale);
    const __m256 zero = _mm256_set1_ps(static_cast<float>(group.zero));
    const __m256 most = _mm256_set1_ps(static_cast<float>((1 << row.bits) - 1));
    uint8_t* codes = row.codes + first;
    for (int64_t i = 0; i < whole; i += 8) {
      __m256 code = _mm256_div_ps(_mm256_loadu_ps(x + i), scale);
      code = _mm256_add_ps(_mm256_round_ps(code, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), zero);
      code = _mm256_min_ps(_mm256_max_ps(code, _mm256_setzero_ps()), most);
      const __m256i integer = _mm256_cvttps_epi32(code);
      const __m128i words =
          _mm_packus_epi32(_mm256_castsi256_si128(integer), _mm256_extracti128_si256(integer, 1));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + i), _mm_packus_epi16(words, words));
    }
    for (int64_t i = whole; i < count; ++i) codes[i] = quantize_value(x[i], group, row.bits);
  }
  return true;
}

}  // namespace quatrain::ops
