// The vector form of hadamard_row.h, over a vector type V of the including file's instruction set:
//   V::kLanes, V::Register, load, store, set1, add, sub, mul, fma, and butterfly<distance>(v): within a
//   register, lane i of a pair at that distance becomes a + b, its partner a - b.
// Included by one source file an instruction set; everything here is local to that file.
#pragma once

#include "ops/cpu/hadamard_row.h"

namespace quatrain::ops {
namespace {

// All butterflies of distance below the register's width.
template <typename V>
inline __attribute__((always_inline)) typename V::Register transform_register(typename V::Register v) {
  v = V::template butterfly<1>(v);
  v = V::template butterfly<2>(v);
  v = V::template butterfly<4>(v);
  if constexpr (V::kLanes > 8) v = V::template butterfly<8>(v);
  return v;
}

// Two stages at once (distances d and 2 d): each value is loaded and stored once for both.
template <typename V>
void two_stages(float* x, int64_t size, int64_t d) {
  for (int64_t first = 0; first < size; first += 4 * d)
    for (int64_t i = first; i < first + d; i += V::kLanes) {
      const auto a = V::load(x + i), b = V::load(x + i + d);
      const auto c = V::load(x + i + 2 * d), e = V::load(x + i + 3 * d);
      const auto ab = V::add(a, b), a_b = V::sub(a, b), ce = V::add(c, e), c_e = V::sub(c, e);
      V::store(x + i, V::add(ab, ce));
      V::store(x + i + d, V::add(a_b, c_e));
      V::store(x + i + 2 * d, V::sub(ab, ce));
      V::store(x + i + 3 * d, V::sub(a_b, c_e));
    }
}

template <typename V>
void one_stage(float* x, int64_t size, int64_t d) {
  for (int64_t first = 0; first < size; first += 2 * d)
    for (int64_t i = first; i < first + d; i += V::kLanes) {
      const auto a = V::load(x + i), b = V::load(x + i + d);
      V::store(x + i, V::add(a, b));
      V::store(x + i + d, V::sub(a, b));
    }
}

// scratch[j] = sum over i of matrix[i, j] x[i] for `inner`-wide rows, four outputs by W registers at a time:
// 4 W independent chains, to cover the latency of the additions.
template <typename V, int W>
void multiply_base(const HadamardRowArguments& h, const float* x) {
  for (int64_t k = 0; k < h.inner; k += W * V::kLanes)
    for (int64_t j = 0; j < h.base; j += 4) {  // 4 divides every base order above 1
      typename V::Register sum[4][W];
      for (int r = 0; r < 4; ++r)
        for (int c = 0; c < W; ++c) sum[r][c] = V::set1(0);
      for (int64_t i = 0; i < h.base; ++i) {
        const float* column = h.matrix + i * h.base + j;
#pragma GCC unroll 2
        for (int c = 0; c < W; ++c) {
          const auto v = V::load(x + i * h.inner + k + c * V::kLanes);
#pragma GCC unroll 4
          for (int r = 0; r < 4; ++r) sum[r][c] = V::fma(V::set1(column[r]), v, sum[r][c]);
        }
      }
      for (int r = 0; r < 4; ++r)
        for (int c = 0; c < W; ++c) V::store(h.scratch + (j + r) * h.inner + k + c * V::kLanes, sum[r][c]);
    }
}

// For inner >= V::kLanes.
template <typename V>
void hadamard_row(const HadamardRowArguments& h, float* x) {
  const int64_t order = h.base * h.inner;
  const float* signs = h.signs;
  for (int64_t block = 0; block < h.blocks; ++block, x += order, signs += order) {
    for (int64_t i = 0; i < order; i += V::kLanes)
      V::store(x + i, transform_register<V>(V::mul(V::load(x + i), V::load(signs + i))));
    int64_t distance = V::kLanes;
    for (; 4 * distance <= h.inner; distance *= 4) two_stages<V>(x, order, distance);
    if (2 * distance <= h.inner) one_stage<V>(x, order, distance);
    if (h.base == 1) continue;
    if (h.inner > V::kLanes) {
      multiply_base<V, 2>(h, x);
    } else {
      multiply_base<V, 1>(h, x);
    }
    for (int64_t i = 0; i < order; i += V::kLanes) V::store(x + i, V::load(h.scratch + i));
  }
}

}  // namespace
}  // namespace quatrain::ops
