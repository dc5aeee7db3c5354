// Per-head steps on q, k and v: norms of the heads, rotary embedding, Hadamard transform, storing k and v.
#pragma once

#include <cstdint>

#include "ops/cuda/kv_pages.h"

namespace quatrain::ops {

/// cos and sin [rows, half] of positions lengths[i] - 1 as ops/rope.h defines them: the angle an FP32
/// product, its functions in FP64, times `scale`.
void rope_factors(const int32_t* lengths, int64_t rows, const float* inverse_frequencies, int64_t half,
                  float scale, float* cosine, float* sine, cudaStream_t stream);

struct HeadRotation {
  int64_t heads = 0;  // of q, then of k, side by side in a row
  int64_t kv_heads = 0;
  int64_t head_dim = 0;               // up to 256
  const float* query_norm = nullptr;  // gains of an RMSNorm of each head, or none
  const float* key_norm = nullptr;
  float epsilon = 0;
  int64_t half = 0;  // pairs (i, i + half) turn
  const float* cosine = nullptr;
  const float* sine = nullptr;
  const float* hadamard_signs = nullptr;  // D / sqrt(head_dim) of a transform of a power of two, or none
};

/// Whether a warp can turn a head with 1 / 32 of its columns a lane: heads of 64, 128 or 256 columns, whole
/// lanes turning.
inline __host__ __device__ bool turns_in_registers(int64_t head_dim, int64_t half) {
  return (head_dim == 64 || head_dim == 128 || head_dim == 256) && half > 0 && half % (head_dim / 32) == 0;
}

/// In place on x [rows, heads + kv_heads, head_dim], rows `stride` floats apart.
void rotate_heads(const HeadRotation& rotation, float* x, int64_t rows, int64_t stride, cudaStream_t stream);

/// The same for q alone; k goes into the pages, and so does v, kv_heads heads right of k, as kv_append()
/// stores them.
void rotate_heads_and_append(const HeadRotation& rotation, float* x, int64_t stride,
                             const DeviceKvLayout& layout, uint8_t* pages, const KvRows& rows,
                             unsigned long long* bad, cudaStream_t stream);

}  // namespace quatrain::ops
