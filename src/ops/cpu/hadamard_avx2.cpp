#include <immintrin.h>

#include "ops/cpu/hadamard_vector.h"

namespace quatrain::ops {
namespace {

struct Vector8 {
  using Register = __m256;
  static constexpr int64_t kLanes = 8;
  static Register load(const float* x) { return _mm256_loadu_ps(x); }
  static void store(float* x, Register v) { _mm256_storeu_ps(x, v); }
  static Register set1(float x) { return _mm256_set1_ps(x); }
  static Register add(Register a, Register b) { return _mm256_add_ps(a, b); }
  static Register sub(Register a, Register b) { return _mm256_sub_ps(a, b); }
  static Register mul(Register a, Register b) { return _mm256_mul_ps(a, b); }
  static Register fma(Register a, Register b, Register c) { return _mm256_fmadd_ps(a, b, c); }

  // partner + v where the lane's bit `distance` is 0, partner - v where it is 1
  template <int distance>
  static Register butterfly(Register v) {
    Register partner;
    if constexpr (distance == 1) partner = _mm256_permute_ps(v, 0xB1);
    if constexpr (distance == 2) partner = _mm256_permute_ps(v, 0x4E);
    if constexpr (distance == 4) partner = _mm256_permute2f128_ps(v, v, 1);
    const Register sum = _mm256_add_ps(partner, v), difference = _mm256_sub_ps(partner, v);
    constexpr int upper = distance == 1 ? 0xAA : distance == 2 ? 0xCC : 0xF0;
    return _mm256_blend_ps(sum, difference, upper);
  }
};

}  // namespace

void hadamard_row_avx2(const HadamardRowArguments& transform, float* x) {
  hadamard_row<Vector8>(transform, x);
}

}  // namespace quatrain::ops
