// The zipper GEMM for many tokens on Hopper (sm_90a); docs/zipper.md explains it with a drawing.
//
// Tokens are the rows of the product (wgmma's A), weights its columns (B), both from shared memory. A thread
// then holds results of two tokens only: a drain is a conversion and a multiply-add a result, with two scales
// in registers. A warpgroup of its own widens the weights, once a CTA, into shared memory.
#pragma once

#include "ops/cuda/zipper_gemm_sm90.cuh"

namespace quatrain::ops::zipper {

struct WideShape {
  static constexpr int kTokens = 128;
  static constexpr int kCluster = 2;  // CTAs of neighbouring row tiles and the same tokens, which they share
  static constexpr int kDrain = 128, kDrains = 1;
  static constexpr int kMathGroups = 2, kWidenGroups = 2;
  static constexpr int kMathThreads = 128 * kMathGroups,
                       kThreads = kMathThreads + 128 * (kWidenGroups + 1);  // one warpgroup of copies
  static constexpr int kResults = 64;  // of a thread: 64 tokens x 128 rows a warpgroup
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kMathRegisters = 168, kOtherRegisters = 48;
  static_assert(kMathThreads * kMathRegisters + (kThreads - kMathThreads) * kOtherRegisters <=
                kThreads * kLaunchRegisters);
  static constexpr int kCodeBytes = kTokens * kStepColumns;
  static constexpr int kWideBytes = kTileRows * kStepColumns;
  static constexpr int kStripBytes = strip_bytes(128, false);
  static constexpr int kChunkBytes = kStrips * kStripBytes;
  static constexpr int kScaleBytes = kTokens * 8;  // scales, then zeros
  static constexpr int kSumBytes = kTileRows * 2;  // S
  static constexpr int kStageBytes =
      kCodeBytes + kWideBytes + kChunkBytes + 8 * kBlockBytes + kScaleBytes + kSumBytes;
  static constexpr int kStages = 4;
  static constexpr int kSharedBytes = 2 * 1024 + kStages * kStageBytes;  // headers, and 1,024 for alignment
  static_assert(kSharedBytes <= 227 * 1024 && kStages % kWidenGroups == 0);
};

// Two rings in step: what is copied as it lies in memory, and what the products read.
struct WideShared {
  using S = WideShape;
  struct Packed {
    Header* header;
    uint8_t *chunks, *residual;
  } packed;
  Header* header;
  uint8_t *codes, *wide, *scales, *sums;

  __device__ explicit WideShared(uint8_t* raw) {
    raw += (1024 - ptx::shared_address(raw) % 1024) % 1024;
    codes = raw;
    wide = codes + S::kStages * S::kCodeBytes;
    packed.chunks = wide + S::kStages * S::kWideBytes;
    packed.residual = packed.chunks + S::kStages * S::kChunkBytes;
    scales = packed.residual + S::kStages * 8 * kBlockBytes;
    sums = scales + S::kStages * S::kScaleBytes;
    header = reinterpret_cast<Header*>(sums + S::kStages * S::kSumBytes);
    packed.header = header + 1;
  }
};
static_assert(2 * sizeof(Header) <= 1024);

// A warp widens two strips of every second step into B tiles as the tensor map would write them.
__device__ void widen_weights(const Params& p, const WideShared& shared, int worker, int group, int warp,
                              int lane) {
  using S = WideShape;
  // A lane writes 4 bytes of rows lane / 4 and lane / 4 + 8 in each of the eight 16-byte columns of the
  // swizzle.
  const uint32_t wide =
      ptx::shared_address(shared.wide) + lane / 4 * kStepColumns + lane / 4 * 16 + lane % 4 * 4;
  const int64_t steps = p.schedule.steps_of(worker);
  int stage = group;
  uint32_t parity = 0;
  for (int64_t step = group; step < steps; step += S::kWidenGroups) {
    ptx::barrier_wait(&shared.packed.header->full[stage], parity);
    const uint32_t presence = shared.packed.header->presence[stage];
    ptx::barrier_wait(&shared.header->empty[stage], parity ^ 1);
#pragma unroll 1
    for (int strip = warp; strip < kStrips; strip += 4) {
      const uint8_t* from = shared.packed.chunks + stage * S::kChunkBytes + strip * S::kStripBytes;
      const auto* dense = reinterpret_cast<const uint4*>(from) + lane;
      uint32_t a[16];
      if (presence >> strip & 1) {
        const int slot = stage * 8 + __popc(presence & ((1u << strip) - 1));
        const auto* lo = reinterpret_cast<const uint4*>(shared.packed.residual + slot * kBlockBytes) + lane;
        ops::widen(dense[0], dense[32], lo[0], lo[32], a);
      } else {
        ops::widen(dense[0], dense[32], a);
      }
      const uint32_t to = wide + stage * S::kWideBytes + strip * (16 * kStepColumns);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        ptx::store_shared(to ^ (k * 16), a[2 * k]);
        ptx::store_shared((to ^ (k * 16)) + 8 * kStepColumns, a[2 * k + 1]);
      }
      if (lane < 8)
        reinterpret_cast<uint32_t*>(shared.sums + stage * S::kSumBytes)[strip * 8 + lane] =
            reinterpret_cast<const uint32_t*>(from + kBlockBytes)[lane];
    }
    ptx::fence_async_shared();
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(&shared.packed.header->empty[stage]);
    if (lane < 8) ptx::barrier_arrive(&shared.header->full[stage]);
    stage += S::kWidenGroups;
    if (stage >= S::kStages) {
      stage -= S::kStages;
      parity ^= 1;
    }
  }
}

// Four lanes hold pairs of rows 2 (lane % 4) of four blocks of 8 rows; afterwards each holds one whole block.
__device__ __forceinline__ void transpose_quad(uint32_t (&v)[4], int lane) {
  const bool odd = lane & 1, high = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(~0u, odd ? v[i] : v[i + 1], 1);
    (odd ? v[i] : v[i + 1]) = other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(~0u, high ? v[i] : v[i + 2], 2);
    (high ? v[i] : v[i + 2]) = other;
  }
}

// Scale, bias and store of 64 tokens x 128 rows: the thread's tokens are `token` and token + 8.
__device__ void finish_wide(const Params& p, int row0, int token, int lane,
                            float (&sums)[WideShape::kResults]) {
  if (row0 >= p.rows) return;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const int row = row0 + 8 * j + lane % 4 * 2;
    const float2 scale = __ldg(reinterpret_cast<const float2*>(p.row_scale + row));
    const float2 bias =
        p.bias != nullptr ? __ldg(reinterpret_cast<const float2*>(p.bias + row)) : make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[4 * j + i] = fmaf(sums[4 * j + i], i % 2 == 0 ? scale.x : scale.y, i % 2 == 0 ? bias.x : bias.y);
  }
  const bool whole_rows = row0 + kTileRows <= p.rows;
  if (!p.y_fp32 && whole_rows && p.y_stride % 8 == 0 && (reinterpret_cast<uintptr_t>(p.y) & 15) == 0) {
    auto* y = static_cast<__nv_bfloat16*>(p.y) + row0 + lane % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < 16; j += 4) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const __nv_bfloat162 pair =
              __floats2bfloat162_rn(sums[4 * (j + i) + 2 * half], sums[4 * (j + i) + 2 * half + 1]);
          v[i] = *reinterpret_cast<const uint32_t*>(&pair);
        }
        transpose_quad(v, lane);
        if (token + 8 * half < p.tokens)
          *reinterpret_cast<uint4*>(y + (token + 8 * half) * p.y_stride + 8 * j) =
              make_uint4(v[0], v[1], v[2], v[3]);
      }
    return;
  }
  if (p.y_fp32 && whole_rows && p.y_stride % 2 == 0 && (reinterpret_cast<uintptr_t>(p.y) & 7) == 0) {
    auto* y = static_cast<float*>(p.y) + row0 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < WideShape::kResults; i += 2) {  // four lanes fill a sector
      const int at = token + i % 4 / 2 * 8;
      if (at < p.tokens)
        *reinterpret_cast<float2*>(y + at * p.y_stride + i / 4 * 8) = make_float2(sums[i], sums[i + 1]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < WideShape::kResults; ++i) {
    const int row = row0 + i / 4 * 8 + lane % 4 * 2 + i % 2, at = token + i % 4 / 2 * 8;
    if (row >= p.rows || at >= p.tokens) continue;
    if (p.y_fp32)
      static_cast<float*>(p.y)[at * p.y_stride + row] = sums[i];
    else
      static_cast<__nv_bfloat16*>(p.y)[at * p.y_stride + row] = __float2bfloat16(sums[i]);
  }
}

__device__ void multiply_wide(const Params& p, const WideShared& shared, int worker, int rank) {
  using S = WideShape;
  // Through a shuffle the compiler knows them to be uniform, and keeps addresses out of vector registers.
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
  const int lane = threadIdx.x % 32;
  const int mine = group * 64 + warp * 16 + lane / 4;  // the thread also has token + 8
  const uint32_t codes = ptx::wgmma_descriptor(ptx::shared_address(shared.codes) + group * 64 * kStepColumns);
  const uint32_t wide = ptx::wgmma_descriptor(ptx::shared_address(shared.wide));
  Header& header = *shared.header;
  Ring<S::kStages> ring;
  ZipperSegment segment;
  float sums[S::kResults];
  for (int64_t cursor = p.schedule.start(worker); p.schedule.next(worker, cursor, segment);) {
#pragma unroll
    for (int i = 0; i < S::kResults; ++i) sums[i] = 0;
    for (int step = segment.first_step; step < segment.last_step; ++step) {
      const int stage = ring.stage;
      ptx::barrier_wait(&header.full[stage], ring.parity);
      int d[S::kResults];
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k)
        ptx::wgmma(d, codes + stage * (S::kCodeBytes / 16) + 2 * k,
                   wide + stage * (S::kWideBytes / 16) + 2 * k, k > 0);
      ptx::wgmma_commit();
      // Under the products.
      const auto* scales = reinterpret_cast<const float*>(shared.scales + stage * S::kScaleBytes) + mine;
      const auto* zeros = reinterpret_cast<const int*>(scales + S::kTokens);
      const float scale0 = scales[0], scale1 = scales[8];
      const int zero0 = zeros[0], zero1 = zeros[8];
      const bool shifted = __any_sync(~0u, (zero0 | zero1) != 0);
      ring.advance();
      ptx::wgmma_wait<0>();
      if (shifted) {
        const auto* row_sums = reinterpret_cast<const short2*>(shared.sums + stage * S::kSumBytes) + lane % 4;
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          const short2 s = row_sums[4 * j];
          d[4 * j] -= zero0 * s.x;
          d[4 * j + 1] -= zero0 * s.y;
          d[4 * j + 2] -= zero1 * s.x;
          d[4 * j + 3] -= zero1 * s.y;
        }
      }
      release<S>(header, stage, lane);
      // |d| < 2^30, so the conversion rounds once at most, as a product of FP32 does.
#pragma unroll
      for (int i = 0; i < S::kResults; ++i)
        sums[i] = fmaf(i % 4 < 2 ? scale0 : scale1, __int2float_rn(d[i]), sums[i]);
    }
    const bool whole = segment.first_step == 0 && segment.last_step == p.schedule.steps;
    if (!whole && !combine<S>(p, header.last, segment, worker, rank, group, threadIdx.x % 128, sums))
      continue;
    finish_wide(p, (segment.row_tile * S::kCluster + rank) * kTileRows,
                segment.token_tile * S::kTokens + mine, lane, sums);
  }
}

static __global__ void __launch_bounds__(WideShape::kThreads, 1)
    wide_kernel(const __grid_constant__ CUtensorMap codes, const __grid_constant__ Params p) {
  using S = WideShape;
  extern __shared__ uint8_t raw[];
  const WideShared shared(raw);
  const int worker = blockIdx.x / S::kCluster, rank = static_cast<int>(ptx::cluster_rank());
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      ptx::barrier_init(&shared.packed.header->full[i], 1);
      ptx::barrier_init(&shared.packed.header->empty[i], 4);  // a widening group's warps
      ptx::barrier_init(&shared.header->full[i], 1 + 4 * 8);  // the copies, and 8 lanes of those warps
      ptx::barrier_init(&shared.header->empty[i], S::kCluster * S::kMathThreads / 32);
    }
    ptx::fence_barrier_init();
  }
  ptx::cluster_sync();
  ptx::allow_next_kernel();
  const int lane = threadIdx.x % 32;
  if (threadIdx.x >= S::kMathThreads) {
    ptx::registers_decrease<S::kOtherRegisters>();
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0) - S::kMathGroups,
              warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
    if (group < S::kWidenGroups) {
      widen_weights(p, shared, worker, group, warp, lane);
    } else {
      if (warp == 0) copy_weights<S>(p, shared.packed, worker, rank, lane);
      if (warp == 1) copy_activations<S>(p, &codes, shared, worker, rank, lane);
    }
  } else {
    ptx::registers_increase<S::kMathRegisters>();
    multiply_wide(p, shared, worker, rank);
  }
  // No CTA may leave while another of its cluster still arrives on its barriers.
  __syncwarp();
  ptx::cluster_sync();
}

}  // namespace quatrain::ops::zipper
