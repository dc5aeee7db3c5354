#include <immintrin.h>

#include "base/number_format.h"
#include "ops/cpu/activation_quantize_row.h"

namespace quatrain::ops {

bool quantize_row_avx512vnni(const QuantizeRowArguments& row) {
  const __m512 largest = _mm512_set1_ps(__FLT_MAX__);
  for (int64_t first = 0, g = 0; first < row.width; first += row.group, ++g) {
    const float* x = row.x + first;
    const int64_t count = row.group < row.width - first ? row.group : row.width - first;
    const int64_t whole = count / 16 * 16;
    const __mmask16 rest = static_cast<__mmask16>((1u << (count - whole)) - 1);
    __m512 low = _mm512_set1_ps(x[0]), high = low;
    __mmask16 odd = 0;  // lanes that met NaN or infinity: |x| <= FLT_MAX fails
    const auto meet = [&](__m512 v) {
      odd |= _mm512_cmp_ps_mask(_mm512_abs_ps(v), largest, _CMP_NLE_UQ);
      low = _mm512_min_ps(low, v);
      high = _mm512_max_ps(high, v);
    };
    for (int64_t i = 0; i < whole; i += 16) meet(_mm512_loadu_ps(x + i));
    if (rest != 0) meet(_mm512_mask_loadu_ps(low, rest, x + whole));
    if (odd != 0) return false;
    const QuantizedGroup group = quantization_of_range(_mm512_reduce_min_ps(low), _mm512_reduce_max_ps(high),
                                                       row.bits, row.symmetric, row.group);
    row.scale[g] = group.scale;
    row.zero[g] = static_cast<int16_t>(group.zero);
    const __m512 scale = _mm512_set1_ps(group.scale);
    const __m512 zero = _mm512_set1_ps(static_cast<float>(group.zero));
    const __m512 most = _mm512_set1_ps(static_cast<float>((1 << row.bits) - 1));
    const auto codes_of = [&](__m512 v) {
      __m512 code = _mm512_div_ps(v, scale);
      code = _mm512_add_ps(_mm512_roundscale_ps(code, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), zero);
      code = _mm512_min_ps(_mm512_max_ps(code, _mm512_setzero_ps()), most);
      return _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(code));
    };
    uint8_t* codes = row.codes + first;
    for (int64_t i = 0; i < whole; i += 16)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), codes_of(_mm512_loadu_ps(x + i)));
    if (rest != 0)
      _mm_mask_storeu_epi8(codes + whole, rest, codes_of(_mm512_maskz_loadu_ps(rest, x + whole)));
  }
  return true;
}

}  // namespace quatrain::ops
