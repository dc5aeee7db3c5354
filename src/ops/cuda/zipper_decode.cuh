// The zipper product for up to 32 tokens, where reading the weights is all that counts (docs/zipper.md).
//
// A CTA computes 64 rows of W over a share of the columns: warps are 4 strips of 16 rows x 2 interleaved halves
// of the steps. Weights go from global memory straight into mma fragments, four steps ahead; the activations of
// the share lie in shared memory. CTAs of one cluster hold the shares of the same rows and add them up through
// each other's shared memory in the order of K, so that no second kernel and no atomics are needed.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/ptx/launch.cuh"
#include "ops/cuda/ptx/mbarrier.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/zipper_matrix.h"
#include "ops/cuda/zipper_widen.cuh"

namespace quatrain::ops::zipper {

struct DecodeParams {
  const uint8_t* chunks;
  const uint8_t* residual;
  const uint32_t* blocks;
  const float* row_scale;
  const float* bias;  // or null
  const int8_t* codes;
  const float* scale;
  const int32_t* zero;
  int64_t code_stride, token_stride;
  int activation_group, activation_groups;
  int rows, tokens, steps;
  int split;  // CTAs of a cluster
  void* y;    // FP32 or BF16
  bool y_fp32;
  int64_t y_stride;
};

inline constexpr int kDecodeThreads = 256;
inline constexpr int kDecodeRows = 64;
inline constexpr int kAhead = 4;  // steps whose loads are in flight a warp

/// Bytes of shared memory for a share of `steps` steps.
template <int kTokens, int kDrain>
constexpr int decode_shared_bytes(int steps) {
  return kTokens * (steps * kStepColumns + 16) + steps * (kStepColumns / kDrain) * kTokens * 8 +
         2 * kDecodeRows * kTokens * 4;
}

__device__ __forceinline__ float load_remote(const float* shared, uint32_t cta) {
  float value;
  asm volatile("{\n .reg .b32 remote;\n mapa.shared::cluster.u32 remote, %1, %2;\n ld.shared::cluster.f32 %0, [remote];\n}"
               : "=f"(value)
               : "r"(ptx::shared_address(shared)), "r"(cta)
               : "memory");
  return value;
}

template <int kTokenBlocks, int kDrain, bool kGroupScales>
__global__ void __launch_bounds__(kDecodeThreads, 2) decode_kernel(const __grid_constant__ DecodeParams p) {
  constexpr int kTokens = 8 * kTokenBlocks, kDrains = kStepColumns / kDrain;
  constexpr int kChunkBytes = kNibbleBytes + kDrains * kTileRows * (kGroupScales ? 4 : 2);
  extern __shared__ __align__(16) uint8_t shared[];
  const int lane = threadIdx.x % 32, strip = threadIdx.x / 32 % 4, half = threadIdx.x / 128;
  const int rank = p.split == 1 ? 0 : static_cast<int>(ptx::cluster_rank());
  const int row_block = blockIdx.x / p.split, tile = row_block / 2, tile_half = row_block % 2;
  const int first = p.steps * rank / p.split, count = p.steps * (rank + 1) / p.split - first;
  const int share = (count + 1 - half) / 2;  // this warp's steps: first + half, + 2, ...
  const int room = (p.steps + p.split - 1) / p.split;  // the largest share: the layout is the same in all CTAs
  const int code_pitch = room * kStepColumns + 16;     // 8 tokens then lie in different banks
  uint8_t* codes = shared;
  float* scales = reinterpret_cast<float*>(codes + kTokens * code_pitch);  // [room * kDrains][kTokens]
  int* zeros = reinterpret_cast<int*>(scales + room * kDrains * kTokens);
  float* partial = reinterpret_cast<float*>(zeros + room * kDrains * kTokens);  // [2 halves][kTokens][64 rows]

  const int64_t first_chunk = static_cast<int64_t>(tile) * p.steps + first + half;
  const uint8_t* chunks = p.chunks + first_chunk * kChunkBytes;
  uint4 dense[kAhead][2], lo[kAhead][2];
  uint32_t entries = 0;  // lane i: the table's entry of step i of the next 32
  const auto entry_of = [&](int i) { return __shfl_sync(~0u, entries, i % 32); };
  const auto load_entries = [&](int i) {
    if (i + lane < share) entries = __ldg(p.blocks + first_chunk + 2 * (i + lane));
  };
  const int position = tile_half * 4 + strip;
  const auto load_dense = [&](int i, uint4(&to)[2]) {
    const auto* from = reinterpret_cast<const uint4*>(chunks + static_cast<int64_t>(2 * i) * kChunkBytes) +
                       tile_half * 256 + strip * 32 + lane;
    to[0] = __ldcs(from);
    to[1] = __ldcs(from + 128);
  };
  const auto load_residual = [&](uint32_t entry, uint4(&to)[2]) {
    to[0] = to[1] = make_uint4(0, 0, 0, 0);  // an absent block is lo = 0
    if ((entry >> position & 1) == 0) return;
    const int64_t block = (entry >> 8) + __popc(entry & ((1u << position) - 1));
    const auto* from = reinterpret_cast<const uint4*>(p.residual + block * kBlockBytes) + lane;
    to[0] = __ldcs(from);
    to[1] = __ldcs(from + 32);
  };
  load_entries(0);
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    if (i < share) load_dense(i, dense[i]);
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    if (i < share) load_residual(entry_of(i), lo[i]);

  // The weights above do not depend on earlier kernels; the activations do.
  ptx::allow_next_kernel();
  ptx::wait_for_previous_kernel();
  const int vectors = count * kStepColumns / 16;
  for (int i = threadIdx.x; i < p.tokens * vectors; i += kDecodeThreads) {
    const int token = i / vectors, vector = i % vectors;
    *reinterpret_cast<uint4*>(codes + token * code_pitch + vector * 16) = __ldg(
        reinterpret_cast<const uint4*>(p.codes + token * p.code_stride + first * kStepColumns) + vector);
  }
  for (int i = threadIdx.x; i < count * kDrains * kTokens; i += kDecodeThreads) {
    const int token = i % kTokens;
    // Columns past the edge have zero codes and weights: any group will do there.
    const int group = min((first * kDrains + i / kTokens) * kDrain / p.activation_group, p.activation_groups - 1);
    const bool used = token < p.tokens;
    scales[i] = used ? __ldg(p.scale + group * p.token_stride + token) : 0.0f;
    zeros[i] = used ? __ldg(p.zero + group * p.token_stride + token) : 0;
  }
  __syncthreads();

  float sums[kTokenBlocks][4] = {};
  for (int base = 0; base < share; base += kAhead) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int i = base + j;
      if (i >= share) break;
      uint32_t a[16];
      widen(dense[j][0], dense[j][1], lo[j][0], lo[j][1], a);
      const int step = 2 * i + half;  // of the share
      float scale0[kDrains], scale1[kDrains];
      if constexpr (kGroupScales) {
        const auto* weight_scales =
            reinterpret_cast<const __half*>(chunks + static_cast<int64_t>(2 * i) * kChunkBytes + kNibbleBytes +
                                            kDrains * kTileRows * 2) + position * 16 + lane / 4;
#pragma unroll
        for (int k = 0; k < kDrains; ++k) {
          scale0[k] = __half2float(weight_scales[k * kTileRows]);
          scale1[k] = __half2float(weight_scales[k * kTileRows + 8]);
        }
      }
      if (i + kAhead < share) {
        if ((i + kAhead) % 32 == 0) load_entries(i + kAhead);
        load_dense(i + kAhead, dense[j]);
        load_residual(entry_of(i + kAhead), lo[j]);
      }
#pragma unroll
      for (int k = 0; k < kDrains; ++k) {
        const int drain = step * kDrains + k;
        int2 z[kTokenBlocks];
        int any = 0;
#pragma unroll
        for (int n = 0; n < kTokenBlocks; ++n) {
          z[n] = *reinterpret_cast<const int2*>(zeros + drain * kTokens + n * 8 + lane % 4 * 2);
          any |= z[n].x | z[n].y;
        }
        int code_sums[4] = {0, 0, 0, 0};
        if (__any_sync(~0u, any != 0)) {  // S is the product with ones
#pragma unroll
          for (int m = 0; m < kDrain / 32; ++m)
            ptx::mma(code_sums, a + k * (kDrain / 8) + 4 * m, 0x01010101u, 0x01010101u);
        }
#pragma unroll
        for (int n = 0; n < kTokenBlocks; ++n) {
          int d[4] = {-z[n].x * code_sums[0], -z[n].y * code_sums[1], -z[n].x * code_sums[2], -z[n].y * code_sums[3]};
          const uint8_t* from = codes + (n * 8 + lane / 4) * code_pitch + step * kStepColumns + k * kDrain + lane % 4 * 4;
#pragma unroll
          for (int m = 0; m < kDrain / 32; ++m)
            ptx::mma(d, a + k * (kDrain / 8) + 4 * m, *reinterpret_cast<const uint32_t*>(from + 32 * m),
                     *reinterpret_cast<const uint32_t*>(from + 32 * m + 16));
          const float2 s = *reinterpret_cast<const float2*>(scales + drain * kTokens + n * 8 + lane % 4 * 2);
          const float w0 = kGroupScales ? scale0[k] : 1.0f, w1 = kGroupScales ? scale1[k] : 1.0f;
          sums[n][0] = fmaf(s.x * w0, __int2float_rn(d[0]), sums[n][0]);
          sums[n][1] = fmaf(s.y * w0, __int2float_rn(d[1]), sums[n][1]);
          sums[n][2] = fmaf(s.x * w1, __int2float_rn(d[2]), sums[n][2]);
          sums[n][3] = fmaf(s.y * w1, __int2float_rn(d[3]), sums[n][3]);
        }
      }
    }
  }

  float* own = partial + half * kTokens * kDecodeRows;
#pragma unroll
  for (int n = 0; n < kTokenBlocks; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      own[(n * 8 + lane % 4 * 2 + i % 2) * kDecodeRows + strip * 16 + lane / 4 + i / 2 * 8] = sums[n][i];
  __syncthreads();
  if (p.split > 1) ptx::cluster_sync();
  for (int i = rank * kDecodeThreads + threadIdx.x; i < p.tokens * kDecodeRows; i += p.split * kDecodeThreads) {
    const int token = i / kDecodeRows, row = row_block * kDecodeRows + i % kDecodeRows;
    if (row >= p.rows) continue;
    float sum = 0;
    for (int cta = 0; cta < p.split; ++cta) {
      const float* at = partial + i;
      sum += p.split == 1 ? at[0] + at[kTokens * kDecodeRows]
                          : load_remote(at, cta) + load_remote(at + kTokens * kDecodeRows, cta);
    }
    const float result = fmaf(sum, p.row_scale[row], p.bias != nullptr ? p.bias[row] : 0.0f);
    const int64_t to = token * p.y_stride + row;
    if (p.y_fp32)
      static_cast<float*>(p.y)[to] = result;
    else
      static_cast<__nv_bfloat16*>(p.y)[to] = __float2bfloat16(result);
  }
  if (p.split > 1) ptx::cluster_sync();  // no CTA leaves while another reads its shared memory
}

}  // namespace quatrain::ops::zipper
