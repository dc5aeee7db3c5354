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

// to = transform of (x * signs) within every K registers, K <= 8 of them at once: all butterflies of distance
// below K * V::kLanes.
template <typename V, int K>
void first_stages(const float* x, const float* signs, int64_t size, float* to) {
  constexpr int64_t kWidth = K * V::kLanes;
  for (int64_t first = 0; first < size; first += kWidth) {
    typename V::Register v[K];
#pragma GCC unroll 8
    for (int c = 0; c < K; ++c) {
      const int64_t i = first + c * V::kLanes;
      v[c] = transform_register<V>(V::mul(V::load(x + i), V::load(signs + i)));
    }
#pragma GCC unroll 3
    for (int d = 1; d < K; d *= 2)
#pragma GCC unroll 8
      for (int c = 0; c < K; ++c)
        if ((c & d) == 0) {
          const auto a = v[c], b = v[c + d];
          v[c] = V::add(a, b);
          v[c + d] = V::sub(a, b);
        }
#pragma GCC unroll 8
    for (int c = 0; c < K; ++c) V::store(to + first + c * V::kLanes, v[c]);
  }
}

// to[j] = sum over i of matrix[i, j] x[i] for `inner`-wide rows, outputs [j, j + J) and W registers of them.
template <typename V, int W, int J>
inline __attribute__((always_inline)) void add_base(const HadamardRowArguments& h, const float* x, int64_t j,
                                                    int64_t k, float* to) {
  typename V::Register sum[J][W];
#pragma GCC unroll 8
  for (int r = 0; r < J; ++r)
    for (int c = 0; c < W; ++c) sum[r][c] = V::set1(0);
  for (int64_t i = 0; i < h.base; ++i) {
    const float* column = h.matrix + i * h.base + j;
#pragma GCC unroll 2
    for (int c = 0; c < W; ++c) {
      const auto v = V::load(x + i * h.inner + k + c * V::kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < J; ++r) sum[r][c] = V::fma(V::set1(column[r]), v, sum[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < J; ++r)
    for (int c = 0; c < W; ++c) V::store(to + (j + r) * h.inner + k + c * V::kLanes, sum[r][c]);
}

// All outputs. Eight independent chains cover the latency of the additions; 4 divides every base order
// above 1.
template <typename V, int W>
void multiply_base(const HadamardRowArguments& h, const float* x, float* to) {
  constexpr int J = 8 / W;
  for (int64_t k = 0; k < h.inner; k += W * V::kLanes) {
    int64_t j = 0;
    for (; j + J <= h.base; j += J) add_base<V, W, J>(h, x, j, k, to);
    if (j < h.base) add_base<V, W, 4>(h, x, j, k, to);
  }
}

// For inner >= V::kLanes.
template <typename V>
void hadamard_row(const HadamardRowArguments& h, float* x) {
  const int64_t order = h.base * h.inner, registers = h.inner / V::kLanes;
  const float* signs = h.signs;
  for (int64_t block = 0; block < h.blocks; ++block, x += order, signs += order) {
    float* stages = h.base == 1 ? x : h.scratch;
    int64_t distance = h.inner;
    if (registers == 1)
      first_stages<V, 1>(x, signs, order, stages);
    else if (registers == 2)
      first_stages<V, 2>(x, signs, order, stages);
    else if (registers == 4)
      first_stages<V, 4>(x, signs, order, stages);
    else
      first_stages<V, 8>(x, signs, order, stages), distance = 8 * V::kLanes;
    for (; 4 * distance <= h.inner; distance *= 4) two_stages<V>(stages, order, distance);
    if (2 * distance <= h.inner) one_stage<V>(stages, order, distance);
    if (h.base == 1) continue;
    if (registers > 1)
      multiply_base<V, 2>(h, stages, x);
    else
      multiply_base<V, 1>(h, stages, x);
  }
}

}  // namespace
}  // namespace quatrain::ops
