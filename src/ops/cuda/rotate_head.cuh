// One warp turns one head of q or k: RMSNorm, rotary embedding, Hadamard transform.
#pragma once

#include "ops/cuda/rotate_heads.h"
#include "ops/cuda/row_codes.cuh"

namespace quatrain::ops {

/// What turns the columns kColumns * lane ... of a head of 32 * kColumns columns, in registers.
template <int kColumns>
struct HeadFactors {
  float cosine[kColumns], sine[kColumns], signs[kColumns];

  __device__ void load(const HeadRotation& p, int64_t row, int lane) {
    const int half = static_cast<int>(p.half), column = kColumns * lane;
    const int64_t at = row * half + column % half;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      cosine[i] = column < 2 * half ? p.cosine[at + i] : 1.0f;
      sine[i] = column < 2 * half ? p.sine[at + i] : 0.0f;
      signs[i] = p.hadamard_signs != nullptr ? p.hadamard_signs[column + i] : 1.0f;
    }
  }
};

/// A lane's columns of a head, turned where they are. Sums and products are rounded one by one, so that every
/// kernel that calls it gives the same bits.
template <int kColumns>
__device__ __forceinline__ void rotate_columns(const HeadRotation& p, const HeadFactors<kColumns>& factors,
                                               bool query, float (&x)[kColumns], int lane) {
  if (p.query_norm != nullptr) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) squares = fmaf(x[i], x[i], squares);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) squares += __shfl_xor_sync(~0u, squares, distance);
    const float factor = rsqrtf(__fadd_rn(__fdiv_rn(squares, 32.0f * kColumns), p.epsilon));
    const float* gain = (query ? p.query_norm : p.key_norm) + kColumns * lane;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) x[i] = __fmul_rn(__fmul_rn(x[i], factor), gain[i]);
  }
  const int lanes = static_cast<int>(p.half) / kColumns;  // of half of what turns
  const bool upper = lane >= lanes, turned = lane < 2 * lanes;
  const int partner = !turned ? lane : upper ? lane - lanes : lane + lanes;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const float other = __shfl_sync(~0u, x[i], partner);
    const float own_part = __fmul_rn(x[i], factors.cosine[i]), other_part = __fmul_rn(other, factors.sine[i]);
    if (turned) x[i] = upper ? __fadd_rn(own_part, other_part) : __fsub_rn(own_part, other_part);
  }
  if (p.hadamard_signs == nullptr) return;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) x[i] = __fmul_rn(x[i], factors.signs[i]);
  warp_hadamard(x, 32 * kColumns);
}

/// x [32 * kColumns] of row `row` into v, turned.
template <int kColumns>
__device__ __forceinline__ void rotate_in_registers(const HeadRotation& p, int64_t row, bool query,
                                                    const float* x, float* v, int lane) {
  HeadFactors<kColumns> factors;
  factors.load(p, row, lane);
  float columns[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) columns[i] = x[kColumns * lane + i];
  rotate_columns(p, factors, query, columns, lane);
#pragma unroll
  for (int i = 0; i < kColumns; ++i) v[kColumns * lane + i] = columns[i];
  __syncwarp();
}

/// x [head_dim] of row `row` into v in shared memory, turned.
__device__ inline void rotate_head(const HeadRotation& p, int64_t row, bool query, const float* x, float* v,
                                   int lane) {
  const int dim = static_cast<int>(p.head_dim), half = static_cast<int>(p.half);
  if (turns_in_registers(dim, half)) {
    if (dim == 64) return rotate_in_registers<2>(p, row, query, x, v, lane);
    if (dim == 128) return rotate_in_registers<4>(p, row, query, x, v, lane);
    return rotate_in_registers<8>(p, row, query, x, v, lane);
  }
  float squares = 0;
  for (int k = lane; k < dim; k += 32) {
    v[k] = x[k];
    squares = fmaf(v[k], v[k], squares);
  }
  if (p.query_norm != nullptr) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) squares += __shfl_xor_sync(~0u, squares, distance);
    const float factor = rsqrtf(__fadd_rn(__fdiv_rn(squares, static_cast<float>(dim)), p.epsilon));
    const float* gain = query ? p.query_norm : p.key_norm;
    for (int k = lane; k < dim; k += 32) v[k] = __fmul_rn(__fmul_rn(v[k], factor), gain[k]);
  }
  __syncwarp();
  for (int i = lane; i < half; i += 32) {
    const float c = p.cosine[row * half + i], s = p.sine[row * half + i], a = v[i], b = v[i + half];
    v[i] = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
    v[i + half] = __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s));
  }
  __syncwarp();
  if (p.hadamard_signs == nullptr) return;
  for (int k = lane; k < dim; k += 32) v[k] = __fmul_rn(v[k], p.hadamard_signs[k]);
  for (int distance = 1; distance < dim; distance *= 2) {
    __syncwarp();
    for (int i = lane; i < dim / 2; i += 32) {
      const int low = i / distance * 2 * distance + i % distance;
      const float a = v[low], b = v[low + distance];
      v[low] = a + b;
      v[low + distance] = a - b;
    }
  }
  __syncwarp();
}

}  // namespace quatrain::ops
