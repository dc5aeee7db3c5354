#include <immintrin.h>

#include "ops/cpu/hadamard_vector.h"

namespace quatrain::ops {
namespace {

struct Vector16 {
  using Register = __m512;
  static constexpr int64_t kLanes = 16;
  static Register load(const float* x) { return _mm512_loadu_ps(x); }
  static void store(float* x, Register v) { _mm512_storeu_ps(x, v); }
  static Register set1(float x) { return _mm512_set1_ps(x); }
  static Register add(Register a, Register b) { return _mm512_add_ps(a, b); }
  static Register sub(Register a, Register b) { return _mm512_sub_ps(a, b); }
  static Register mul(Register a, Register b) { return _mm512_mul_ps(a, b); }
  static Register fma(Register a, Register b, Register c) { return _mm512_fmadd_ps(a, b, c); }

  // partner + v where the lane's bit `distance` is 0, partner - v where it is 1
  template <int distance>
  static Register butterfly(Register v) {
    Register partner;
    if constexpr (distance == 1) partner = _mm512_permute_ps(v, 0xB1);
    if constexpr (distance == 2) partner = _mm512_permute_ps(v, 0x4E);
    if constexpr (distance == 4) partner = _mm512_shuffle_f32x4(v, v, 0xB1);
    if constexpr (distance == 8) partner = _mm512_shuffle_f32x4(v, v, 0x4E);
    constexpr __mmask16 upper = distance == 1   ? 0xAAAA
                                : distance == 2 ? 0xCCCC
                                : distance == 4 ? 0xF0F0
                                                : 0xFF00;
    return _mm512_mask_sub_ps(_mm512_add_ps(partner, v), upper, partner, v);
  }
};

}  // namespace

void hadamard_row_avx512vnni(const HadamardRowArguments& transform, float* x) {
  hadamard_row<Vector16>(transform, x);
}

}  // namespace quatrain::ops
