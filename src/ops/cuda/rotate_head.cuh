// One warp turns one head of q or k: RMSNorm, rotary embedding, Hadamard transform.
#pragma once

#include "ops/cuda/rotate_heads.h"
#include "ops/cuda/row_codes.cuh"

namespace quatrain::ops {

/// The transform of 32 * kColumns columns, in registers.
template <int kColumns>
__device__ __forceinline__ void head_hadamard(const float* signs, float* v, int lane) {
  float x[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) x[i] = __fmul_rn(v[kColumns * lane + i], signs[kColumns * lane + i]);
  warp_hadamard(x, 32 * kColumns);
#pragma unroll
  for (int i = 0; i < kColumns; ++i) v[kColumns * lane + i] = x[i];
  __syncwarp();
}

/// Brings what turns the heads of row `row` into L1, before the heads themselves are there.
__device__ __forceinline__ void prefetch_rotation(const HeadRotation& p, int64_t row) {
  const int at = threadIdx.x * 32;  // a line
  if (at < p.half) {
    ptx::prefetch_l1(p.cosine + row * p.half + at);
    ptx::prefetch_l1(p.sine + row * p.half + at);
  }
  if (p.hadamard_signs != nullptr && at < p.head_dim) ptx::prefetch_l1(p.hadamard_signs + at);
}

/// x [head_dim] of row `row` into v in shared memory, turned. Sums and products are rounded one by one, so
/// that every kernel that calls it gives the same bits.
__device__ inline void rotate_head(const HeadRotation& p, int64_t row, bool query, const float* x, float* v,
                                   int lane) {
  const int dim = static_cast<int>(p.head_dim), half = static_cast<int>(p.half);
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
  if (dim == 64) return head_hadamard<2>(p.hadamard_signs, v, lane);
  if (dim == 128) return head_hadamard<4>(p.hadamard_signs, v, lane);
  if (dim == 256) return head_hadamard<8>(p.hadamard_signs, v, lane);
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
