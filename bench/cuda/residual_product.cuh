// The product of the residual blocks alone, y = lo x, as an engine without the zipper runs it beside the
// dense one: what pipeline_bench.cu compares with. Groups of 128, scales a row, zeros folded into the codes.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/device_activations.h"
#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/zipper_matrix.h"

namespace quatrain::bench {

struct ResidualParams {
  const uint8_t* residual;
  const uint32_t* blocks;
  const float* row_scale;
  const int8_t* codes;
  const float* scale;
  int64_t code_stride, token_stride;
  int rows, tokens, steps;
  __nv_bfloat16* y;  // [tokens, rows]
};

// A lane's lo nibbles of a block as bytes: mma's a.
__device__ __forceinline__ void widen_lo(const uint4& low, const uint4& high, uint32_t (&a)[16]) {
  const uint32_t x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = x[i] & 0x0F0F0F0Fu;
    a[2 * i + 1] = x[i] >> 4 & 0x0F0F0F0Fu;
  }
}

// The place of a strip's block in a step, which must be present.
__device__ __forceinline__ const uint4* block_at(const ResidualParams& p, uint32_t entry, int strip,
                                                 int lane) {
  const int64_t number = (entry >> 8) + __popc(entry & ((1u << strip) - 1));
  return reinterpret_cast<const uint4*>(p.residual + number * ops::kBlockBytes) + lane;
}

// Up to 16 tokens: a CTA a strip of 16 rows, whose eight warps share its blocks.
__global__ void __launch_bounds__(256) residual_decode(ResidualParams p) {
  __shared__ float partial[8][16][16];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int tile = blockIdx.x / 8, strip = blockIdx.x % 8;
  float sums[2][4] = {};
  for (int step = warp; step < p.steps; step += 8) {
    const uint32_t entry = __ldg(p.blocks + static_cast<int64_t>(tile) * p.steps + step);
    if (!(entry >> strip & 1)) continue;
    const uint4* lo = block_at(p, entry, strip, lane);
    uint32_t a[16];
    widen_lo(__ldg(lo), __ldg(lo + 32), a);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (8 * n >= p.tokens) break;
      const int token = min(8 * n + lane / 4, p.tokens - 1);
      const auto* codes =
          reinterpret_cast<const uint32_t*>(p.codes + token * p.code_stride + step * 128) + lane % 4;
      int d[4] = {};
#pragma unroll
      for (int u = 0; u < 4; ++u) ops::ptx::mma(d, a + 4 * u, __ldg(codes + 8 * u), __ldg(codes + 8 * u + 4));
      const float2 s =
          *reinterpret_cast<const float2*>(p.scale + step * p.token_stride + 8 * n + lane % 4 * 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] = fmaf(i % 2 == 0 ? s.x : s.y, __int2float_rn(d[i]), sums[n][i]);
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      partial[warp][8 * n + lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = sums[n][i];
  __syncthreads();
  const int token = threadIdx.x / 16, row = blockIdx.x * 16 + threadIdx.x % 16;
  if (token >= p.tokens || row >= p.rows) return;
  float sum = 0;
  for (int w = 0; w < 8; ++w) sum += partial[w][token][threadIdx.x % 16];
  p.y[static_cast<int64_t>(token) * p.rows + row] = __float2bfloat16(sum * p.row_scale[row]);
}

inline constexpr int kResidualTokens = 64;
inline constexpr int kMostSteps = 256;

// More: a CTA 128 rows x 64 tokens, a warp a strip; only steps with a block are fetched, two at a time.
__global__ void __launch_bounds__(256) residual_tile(ResidualParams p) {
  __shared__ __align__(128) uint8_t codes[2][kResidualTokens * 128];
  __shared__ uint32_t entries[kMostSteps];
  __shared__ uint16_t list[kMostSteps];
  __shared__ int count;
  const int strip = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int tile = blockIdx.x, first_token = blockIdx.y * kResidualTokens;
  for (int i = threadIdx.x; i < p.steps; i += 256)
    entries[i] = __ldg(p.blocks + static_cast<int64_t>(tile) * p.steps + i);
  __syncthreads();
  if (threadIdx.x == 0) {
    count = 0;
    for (int i = 0; i < p.steps; ++i)
      if (entries[i] & 255) list[count++] = static_cast<uint16_t>(i);
  }
  __syncthreads();
  const auto fetch = [&](int i) {
    if (i < count) {
      const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(codes[i % 2]));
      for (int v = threadIdx.x; v < kResidualTokens * 8; v += 256) {
        const int row = v / 8, vector = v % 8, token = min(first_token + row, p.tokens - 1);
        ops::ptx::copy_async(to + row * 128 + (vector ^ row % 8) * 16,
                             p.codes + token * p.code_stride + list[i] * 128 + vector * 16);
      }
    }
    ops::ptx::copy_async_commit();
  };
  uint4 low{}, high{};
  const auto load_block = [&](int i) {
    if (i >= count || !(entries[list[i]] >> strip & 1)) return;
    const uint4* lo = block_at(p, entries[list[i]], strip, lane);
    low = __ldg(lo);
    high = __ldg(lo + 32);
  };
  float sums[kResidualTokens / 8][4] = {};
  fetch(0);
  load_block(0);
  for (int i = 0; i < count; ++i) {
    fetch(i + 1);
    ops::ptx::copy_async_wait<1>();
    __syncthreads();
    const bool present = entries[list[i]] >> strip & 1;
    uint32_t a[16];
    widen_lo(low, high, a);
    load_block(i + 1);
    if (present) {
#pragma unroll
      for (int n = 0; n < kResidualTokens / 8; ++n) {
        int d[4] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t b[4];
          ops::ptx::load_matrices<false>(
              b, codes[i % 2] + (8 * n + lane % 8) * 128 + ((half * 4 + lane / 8) ^ lane % 8) * 16);
          ops::ptx::mma(d, a + 8 * half, b[0], b[1]);
          ops::ptx::mma(d, a + 8 * half + 4, b[2], b[3]);
        }
        const float2 s = *reinterpret_cast<const float2*>(p.scale + list[i] * p.token_stride + first_token +
                                                          8 * n + lane % 4 * 2);
#pragma unroll
        for (int r = 0; r < 4; ++r)
          sums[n][r] = fmaf(r % 2 == 0 ? s.x : s.y, __int2float_rn(d[r]), sums[n][r]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int n = 0; n < kResidualTokens / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = first_token + 8 * n + lane % 4 * 2 + i % 2;
      const int row = tile * 128 + strip * 16 + lane / 4 + i / 2 * 8;
      if (token < p.tokens && row < p.rows)
        p.y[static_cast<int64_t>(token) * p.rows + row] = __float2bfloat16(sums[n][i] * p.row_scale[row]);
    }
}

inline void residual_product(const ops::ZipperMatrix& weights, const ops::DeviceActivations& x,
                             __nv_bfloat16* y, cudaStream_t stream) {
  require(weights.steps <= kMostSteps && weights.drain == 128 && !weights.group_scales && x.group == 128,
          "residual product: it takes up to {} columns, scales a row and groups of 128", kMostSteps * 128);
  const ResidualParams params{weights.residual.data(),
                              weights.blocks.data(),
                              weights.row_scale.data(),
                              x.codes.data(),
                              x.scale.data(),
                              x.stride,
                              x.token_stride,
                              static_cast<int>(weights.rows),
                              static_cast<int>(x.tokens),
                              static_cast<int>(weights.steps),
                              y};
  if (x.tokens <= 16) {
    residual_decode<<<static_cast<unsigned>(weights.tiles * 8), 256, 0, stream>>>(params);
  } else {
    const dim3 grid(static_cast<unsigned>(weights.tiles),
                    static_cast<unsigned>((x.tokens + kResidualTokens - 1) / kResidualTokens));
    residual_tile<<<grid, 256, 0, stream>>>(params);
  }
  ops::cuda_check(cudaGetLastError(), "residual product");
}

/// y += x, element by element.
__global__ void reduce_add(__nv_bfloat162* y, const __nv_bfloat162* x, int64_t size) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < size;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    y[i] = __hadd2(y[i], x[i]);
}

}  // namespace quatrain::bench
