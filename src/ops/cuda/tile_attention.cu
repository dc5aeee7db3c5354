// Causal attention of up to 128 consecutive tokens of one query head at a time (prefill), after
// FlashAttention (arXiv 2205.14135): page after page is copied to shared memory, one ahead, and widened there
// to FP16; scores and output stay in registers, a warp has 16 of the tokens.
#include <cuda_fp16.h>

#include <algorithm>

#include "ops/cuda/gpu.h"
#include "ops/cuda/kv_pages.h"
#include "ops/cuda/ptx/mma.cuh"

namespace quatrain::ops {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
static_assert(kQueryTile == kWarps * 16);

struct TileParams {
  DeviceKvLayout layout;
  const uint8_t* pages;
  KvRows rows;
  const QueryTile* tiles;
  KvAttention attention;
};

__device__ __forceinline__ uint32_t bits_of(__half2 x) {
  return *reinterpret_cast<uint32_t*>(&x);
}

__device__ __forceinline__ float2 scale_and_shift(uint32_t pair) {
  const float scale = __half2float(__ushort_as_half(static_cast<unsigned short>(pair)));
  return {scale, -scale * static_cast<float>(static_cast<int32_t>(pair) >> 16)};
}

// Copies a head's part of a page to shared memory in the background.
__device__ __forceinline__ void fetch(const uint8_t* from, uint8_t* to, int bytes) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  for (int i = 16 * threadIdx.x; i < bytes; i += 16 * kThreads)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + i), "l"(from + i) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Widens keys (which = 0) or values (1) of a page to FP16 [token][kDim + 8], a thread 8 columns of a token at
// a time; tokens from `valid` on, which may hold anything, become zero.
template <int kDim>
__device__ void widen_page(const DeviceKvLayout& layout, const uint8_t* head, int which, int valid,
                           __half* out) {
  const uint8_t* all = head + which * layout.codes_bytes();
  const auto* pairs = reinterpret_cast<const uint32_t*>(head + 2 * layout.codes_bytes());
  const int groups = layout.groups(), width = layout.group_columns();
  for (int i = threadIdx.x; i < kKvPageTokens * kDim / 8; i += kThreads) {
    const int slot = i / (kDim / 8), column = i % (kDim / 8) * 8;
    uint4 words = {0, 0, 0, 0};
    if (slot < valid) {
      if (layout.bits == 16) {
        words = *reinterpret_cast<const uint4*>(all + slot * (2 * kDim) + 2 * column);
      } else {
        uint32_t codes[2];
        if (layout.bits == 4) {
          const uint32_t word = *reinterpret_cast<const uint32_t*>(all + slot * (kDim / 2) + column / 2);
          codes[0] = word & 0x0F0F0F0Fu;       // columns 0, 2, 4, 6
          codes[1] = word >> 4 & 0x0F0F0F0Fu;  // columns 1, 3, 5, 7
        } else {
          const uint2 word = *reinterpret_cast<const uint2*>(all + slot * kDim + column);
          codes[0] = __byte_perm(word.x, word.y, 0x6420);
          codes[1] = __byte_perm(word.x, word.y, 0x7531);
        }
        float2 by = scale_and_shift(
            pairs[(which * kKvPageTokens + slot) * groups + (groups > 1 ? column / width : 0)]);
        uint32_t halves[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          // Groups are even: both columns of a pair are in one.
          if (groups > 1)
            by = scale_and_shift(pairs[(which * kKvPageTokens + slot) * groups + (column + 2 * k) / width]);
          halves[k] =
              bits_of(__floats2half2_rn(fmaf(static_cast<float>(codes[0] >> 8 * k & 255), by.x, by.y),
                                        fmaf(static_cast<float>(codes[1] >> 8 * k & 255), by.x, by.y)));
        }
        words = make_uint4(halves[0], halves[1], halves[2], halves[3]);
      }
    }
    *reinterpret_cast<uint4*>(out + slot * (kDim + 8) + column) = words;
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, kDim == 64 ? 2 : 1)
    tile_kernel(const __grid_constant__ TileParams p) {
  constexpr int kStride = kDim + 8;  // halves; ldmatrix meets no bank conflicts
  extern __shared__ __align__(16) __half shared[];
  __half* keys = shared;  // [token][column]
  __half* values = shared + kKvPageTokens * kStride;
  auto* raw = reinterpret_cast<uint8_t*>(shared + 2 * kKvPageTokens * kStride);  // two pages
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head = blockIdx.y, kv_head = head / (p.attention.heads / p.layout.kv_heads);
  const QueryTile tile = p.tiles[blockIdx.x];
  const int32_t* table = p.rows.page_table + int64_t{tile.sequence} * p.rows.max_pages;

  // Of the warp's 16 tokens a lane holds rows lane / 4 and 8 on.
  const int own[2] = {warp * 16 + lane / 4, warp * 16 + lane / 4 + 8};
  uint32_t q[kDim / 16][4];
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = own[r % 2], column = 16 * k + 2 * (lane % 4) + 8 * (r / 2);
      float a = 0, b = 0;
      if (row < tile.count) {
        const float* from =
            p.attention.q + (tile.row + row) * p.attention.q_stride + int64_t{head} * kDim + column;
        a = from[0];
        b = from[1];
      }
      q[k][r] = bits_of(__floats2half2_rn(a, b));
    }
  float out[kDim / 8][4], largest[2] = {-1e30f, -1e30f}, sum[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) out[j][i] = 0;

  const float scale = p.attention.scale * 1.44269504f;
  const int end = tile.position + tile.count;
  const int begin = p.attention.window > 0 ? max(0, tile.position + 1 - p.attention.window) : 0;
  const int bytes = static_cast<int>(p.layout.head_bytes());
  const int start = begin / kKvPageTokens * kKvPageTokens;
  fetch(p.pages + p.layout.at(table[start / kKvPageTokens], kv_head), raw, bytes);
  for (int first = start; first < end; first += kKvPageTokens) {
    const int page = (first - start) / kKvPageTokens;
    const uint8_t* at = raw + page % 2 * bytes;
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    if (first + kKvPageTokens < end)
      fetch(p.pages + p.layout.at(table[first / kKvPageTokens + 1], kv_head), raw + (page + 1) % 2 * bytes,
            bytes);
    widen_page<kDim>(p.layout, at, 0, end - first, keys);
    widen_page<kDim>(p.layout, at, 1, end - first, values);
    __syncthreads();
    // Warps whose tokens all stand before this page, or past the tile, have nothing to do.
    if (warp * 16 >= tile.count || first > tile.position + warp * 16 + 15) continue;

    float scores[kKvPageTokens / 8][4];
#pragma unroll
    for (int n = 0; n < kKvPageTokens / 8; ++n) {
      scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0;
      // Matrix i: tokens 8 n ... + 7, columns 8 i on.
      const __half* from = keys + (8 * n + lane % 8) * kStride + lane / 8 * 8;
#pragma unroll
      for (int k = 0; k < kDim / 16; k += 2) {
        uint32_t b[4];
        ptx::load_matrices<false>(b, from + 16 * k);
        ptx::mma_half(scores[n], q[k][0], q[k][1], q[k][2], q[k][3], b[0], b[1]);
        ptx::mma_half(scores[n], q[k + 1][0], q[k + 1][1], q[k + 1][2], q[k + 1][3], b[2], b[3]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = tile.position + own[r];
      float top = largest[r];
#pragma unroll
      for (int n = 0; n < kKvPageTokens / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int token = first + 8 * n + 2 * (lane % 4) + i;
          const bool seen =
              token <= position && (p.attention.window == 0 || token > position - p.attention.window);
          float& score = scores[n][2 * r + i];
          score = seen ? score * scale : -INFINITY;
          top = fmaxf(top, score);
        }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float fade = exp2f(largest[r] - top);
      largest[r] = top;
      float total = 0;
#pragma unroll
      for (int n = 0; n < kKvPageTokens / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = scores[n][2 * r + i];
          score = exp2f(score - top);
          total += score;
        }
      sum[r] = sum[r] * fade + total;
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
        out[j][2 * r] *= fade;
        out[j][2 * r + 1] *= fade;
      }
    }
#pragma unroll
    for (int k = 0; k < kKvPageTokens / 16; ++k) {
      const uint32_t a[4] = {bits_of(__floats2half2_rn(scores[2 * k][0], scores[2 * k][1])),
                             bits_of(__floats2half2_rn(scores[2 * k][2], scores[2 * k][3])),
                             bits_of(__floats2half2_rn(scores[2 * k + 1][0], scores[2 * k + 1][1])),
                             bits_of(__floats2half2_rn(scores[2 * k + 1][2], scores[2 * k + 1][3]))};
      // Matrices: tokens 16 k on and 8 further, columns 8 j on; the same of columns 8 (j + 1) on.
      const __half* from = values + (16 * k + lane % 16) * kStride + lane / 16 * 8;
#pragma unroll
      for (int j = 0; j < kDim / 8; j += 2) {
        uint32_t b[4];
        ptx::load_matrices<true>(b, from + 8 * j);
        ptx::mma_half(out[j], a[0], a[1], a[2], a[3], b[0], b[1]);
        ptx::mma_half(out[j + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
    sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    if (own[r] >= tile.count) continue;
    float* to = p.attention.out + (tile.row + own[r]) * p.attention.out_stride + int64_t{head} * kDim +
                2 * (lane % 4);
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      to[8 * j] = out[j][2 * r] / sum[r];
      to[8 * j + 1] = out[j][2 * r + 1] / sum[r];
    }
  }
}

// Shared memory of a block: keys and values of a page widened, and two pages as they are.
int64_t tile_bytes(const DeviceKvLayout& layout) {
  return int64_t{2} * kKvPageTokens * (layout.head_dim + 8) * 2 + 2 * layout.head_bytes();
}

template <int kDim>
void launch(const TileParams& params, int count, cudaStream_t stream) {
  constexpr int kMost = 2 * kKvPageTokens * (kDim + 8) * 2 + 2 * kKvPageTokens * kDim * 4;
  static_assert(kMost <= 227 * 1024);
  static const cudaError_t prepared = cudaFuncSetAttribute(
      tile_kernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, std::min(kMost, gpu_shared_bytes()));
  cuda_check(prepared, "prefill attention: shared memory");
  const int64_t bytes = tile_bytes(params.layout);
  require(bytes <= kMost, "prefill attention: {} groups a head; it takes fewer", params.layout.groups());
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(params.attention.heads));
  tile_kernel<kDim><<<grid, kThreads, static_cast<size_t>(bytes), stream>>>(params);
  cuda_check(cudaGetLastError(), "prefill attention");
}

}  // namespace

bool tile_attention_fits(const DeviceKvLayout& layout) {
  const bool width = layout.head_dim == 64 || layout.head_dim == 128 || layout.head_dim == 256;
  return width && tile_bytes(layout) <= gpu_shared_bytes();
}

void tile_attention(const DeviceKvLayout& layout, const uint8_t* pages, const KvRows& rows,
                    const QueryTile* tiles, int count, const KvAttention& attention, cudaStream_t stream) {
  if (count == 0) return;
  require(tile_attention_fits(layout) && attention.heads % layout.kv_heads == 0,
          "prefill attention: {} query heads over {} kv heads of {} columns; it takes 64, 128 or 256, as far "
          "as the "
          "GPU's shared memory reaches",
          attention.heads, layout.kv_heads, layout.head_dim);
  const TileParams params{layout, pages, rows, tiles, attention};
  if (layout.head_dim == 64) return launch<64>(params, count, stream);
  if (layout.head_dim == 128) return launch<128>(params, count, stream);
  launch<256>(params, count, stream);
}

}  // namespace quatrain::ops
