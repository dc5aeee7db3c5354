#include <immintrin.h>

#include "base/number_format.h"
#include "ops/cpu/activation_quantize_row.h"

namespace quatrain::ops {
namespace {

__mmask16 lanes(int64_t count) {
  return count >= 16 ? __mmask16(0xFFFF) : static_cast<__mmask16>((1u << count) - 1);
}

}  // namespace

bool quantize_row_avx512vnni(const QuantizeRowArguments& row) {
  const __m512 largest = _mm512_set1_ps(__FLT_MAX__);
  for (int64_t first = 0, g = 0; first < row.width; first += row.group, ++g) {
    const float* x = row.x + first;
    const int64_t count = row.group < row.width - first ? row.group : row.width - first;
    __m512 low = _mm512_set1_ps(x[0]), high = low;
    __mmask16 odd = 0;  // lanes that met NaN or infinity: |x| <= FLT_MAX fails
    for (int64_t i = 0; i < count; i += 16) {
      const __m512 v = _mm512_mask_loadu_ps(low, lanes(count - i), x + i);
      odd |= _mm512_cmp_ps_mask(_mm512_abs_ps(v), largest, _CMP_NLE_UQ);
      low = _mm512_min_ps(low, v);
      high = _mm512_max_ps(high, v);
    }
    if (odd != 0) return false;
    const QuantizedGroup group = quantization_of_range(_mm512_reduce_min_ps(low), _mm512_reduce_max_ps(high),
                                                       row.bits, row.symmetric, row.group);
    row.scale[g] = group.scale;
    row.zero[g] = static_cast<int16_t>(group.zero);
    const __m512 scale = _mm512_set1_ps(group.scale);
    const __m512 zero = _mm512_set1_ps(static_cast<float>(group.zero));
    const __m512 most = _mm512_set1_ps(static_cast<float>((1 << row.bits) - 1));
    for (int64_t i = 0; i < count; i += 16) {
      const __mmask16 mask = lanes(count - i);
      __m512 code = _mm512_div_ps(_mm512_maskz_loadu_ps(mask, x + i), scale);
      code = _mm512_add_ps(_mm512_roundscale_ps(code, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), zero);
      code = _mm512_min_ps(_mm512_max_ps(code, _mm512_setzero_ps()), most);
      _mm_mask_storeu_epi8(row.codes + first + i, mask, _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(code)));
    }
  }
  return true;
}

}  // namespace quatrain::ops
