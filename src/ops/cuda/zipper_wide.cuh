// The zipper GEMM for many tokens on Hopper (sm_90a); docs/zipper.md explains it with a drawing.
//
// Tokens are the rows of the product (wgmma's A), weights its columns (B), both from shared memory. A thread
// then holds results of two tokens a block of 64: a drain is a conversion and a multiply-add a result, with
// two scales in registers. Warps of their own widen the weights, once a CTA, into shared memory.
#pragma once

#include "ops/cuda/zipper_pipeline.cuh"

namespace quatrain::ops::zipper {

// Every operand byte crosses shared memory, whose 128 bytes a cycle are the bound: warpgroups of two blocks
// halve what widening costs a product. A warpgroup drains under the other one's products.
template <int kBlocksValue>
struct WideShape {
  static constexpr int kBlocks = kBlocksValue;  // of 64 tokens a math warpgroup
  static constexpr int kTokens = 128 * kBlocks;
  static constexpr int kCluster = 2;  // CTAs of neighbouring row tiles and the same tokens, which they share
  static constexpr int kDrain = 128, kDrains = 1;
  static constexpr int kMathGroups = 2, kMathThreads = 128 * kMathGroups;
  static constexpr int kWidenWarps = kBlocks == 1 ? 10 : 6;
  // And two warps of copies, in whole warpgroups, by which registers are dealt out.
  static constexpr int kThreads = kMathThreads + (kWidenWarps + 2 + 3) / 4 * 128;
  static constexpr int kResults = 64;  // of a thread: 64 tokens x 128 rows a warpgroup
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kMathRegisters = kBlocks == 1 ? 168 : 216, kOtherRegisters = kBlocks == 1 ? 48 : 40;
  static_assert(kMathThreads * kMathRegisters + (kThreads - kMathThreads) * kOtherRegisters <=
                kThreads * kLaunchRegisters);
  static constexpr int kCodeBytes = kTokens * kStepColumns;
  static constexpr int kWideBytes = kTileRows * kStepColumns;
  static constexpr int kStripBytes = strip_bytes(128, false);
  static constexpr int kChunkBytes = kStrips * kStripBytes;
  static constexpr int kScaleBytes = kTokens * 8;  // scales, then zeros
  static constexpr int kSumBytes = kTileRows * 2;  // S
  static constexpr int kSumLanes = 4;              // 16 bytes each, of a pair of strips
  static constexpr int kStages = kBlocks == 1 ? 4 : 3, kPackedStages = 4;
  static constexpr int kHeaderBytes = 1024;                  // barriers, presence masks, flags
  static constexpr int kSharedBytes = 1024 + kHeaderBytes +  // 1,024 for alignment
                                      kStages * (kCodeBytes + kWideBytes + kScaleBytes + kSumBytes) +
                                      kPackedStages * (kChunkBytes + kStrips * kBlockBytes);
  static_assert(kSharedBytes <= 227 * 1024);
  // A widening warp moves on by a ring's length at most.
  static_assert((kStrips / 2 - 1 + kWidenWarps) / (kStrips / 2) <= kStages);
};

// Two rings: what is copied as it lies in memory, and what the products read.
template <typename S>
struct WideShared {
  WeightRing packed;
  CodeRing codes;
  uint32_t wide, sums;  // beside the codes
  uint32_t last_flags;

  __device__ explicit WideShared(uint32_t at) {
    codes.codes = at;
    wide = at + S::kStages * S::kCodeBytes;
    packed.chunks = wide + S::kStages * S::kWideBytes;
    packed.residual = packed.chunks + S::kPackedStages * S::kChunkBytes;
    codes.scales = packed.residual + S::kPackedStages * kStrips * kBlockBytes;
    sums = codes.scales + S::kStages * S::kScaleBytes;
    codes.barriers.at = sums + S::kStages * S::kSumBytes;
    packed.barriers.at = codes.barriers.at + Barriers::kBytes;
    packed.presence = packed.barriers.at + Barriers::kBytes;
    last_flags = packed.presence + 4 * 16;
  }
};

// A warp widens every kWidenWarps-th pair of strips into B tiles as the tensor map would write them.
template <typename S>
__device__ void widen_weights(const Params& p, const WideShared<S>& shared, int worker, int warp, int lane) {
  // A store takes 16 rows of two of the eight 16-byte columns of the swizzle; a lane names one of its rows.
  const uint32_t wide = shared.wide + lane % 16 * kStepColumns + (lane / 16 ^ lane % 8) * 16;
  const uint32_t sums = shared.sums + lane * 16;
  const uint32_t lane_sums = lane / 2 % 2 * S::kStripBytes + kBlockBytes + lane % 2 * 16;
  Ring<S::kPackedStages> from;
  Ring<S::kStages> to;
  int pair = warp;
  const int pairs = static_cast<int>(p.schedule.steps_of(worker)) * (kStrips / 2);
  for (int left = pairs - warp; left > 0; left -= S::kWidenWarps) {
    from.advance(pair / (kStrips / 2));
    to.advance(pair / (kStrips / 2));
    pair %= kStrips / 2;
    ptx::barrier_wait(shared.packed.barriers.full(from.stage), from.parity);
    const uint32_t dense = shared.packed.chunks + from.stage * S::kChunkBytes + pair * (2 * S::kStripBytes);
    const uint32_t presence = ptx::load_shared<uint32_t>(shared.packed.presence + 4 * from.stage);
    ptx::barrier_wait(shared.codes.barriers.empty(to.stage), to.parity ^ 1);
    const uint32_t at = wide + to.stage * S::kWideBytes + pair * (2 * 16 * kStepColumns);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t strip = dense + i * S::kStripBytes + lane * 16, rows = at + i * (16 * kStepColumns);
      const uint4 low = ptx::load_shared<uint4>(strip),
                  high = ptx::load_shared<uint4>(strip + kBlockBytes / 2);
      uint32_t a[16];
      if (presence >> (2 * pair + i) & 1) {
        // Blocks lie in the order of the strips that have one.
        const int block = from.stage * kStrips + __popc(presence & ((1u << (2 * pair + i)) - 1));
        const uint32_t residual = shared.packed.residual + block * kBlockBytes + lane * 16;
        widen(low, ptx::load_shared<uint4>(residual), a);
        widen(high, ptx::load_shared<uint4>(residual + kBlockBytes / 2), a + 8);
      } else {
        widen(low, a);
        widen(high, a + 8);
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) ptx::store_matrices(rows ^ k * 32, a + 4 * k);
    }
    if (lane < S::kSumLanes)
      ptx::store_shared(sums + to.stage * S::kSumBytes + pair * (2 * 32),
                        ptx::load_shared<uint4>(dense + lane_sums));
    ptx::fence_async_shared();
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(shared.packed.barriers.empty(from.stage));
    if (lane < S::kSumLanes) ptx::barrier_arrive(shared.codes.barriers.full(to.stage));
    pair += S::kWidenWarps;
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
__device__ __forceinline__ void finish_wide(const Params& p, int row0, int token, int lane,
                                            float (&sums)[64]) {
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
    for (int i = 0; i < 64; i += 2) {  // four lanes fill a sector
      const int at = token + i % 4 / 2 * 8;
      if (at < p.tokens)
        *reinterpret_cast<float2*>(y + at * p.y_stride + i / 4 * 8) = make_float2(sums[i], sums[i + 1]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const int row = row0 + i / 4 * 8 + lane % 4 * 2 + i % 2, at = token + i % 4 / 2 * 8;
    if (row >= p.rows || at >= p.tokens) continue;
    if (p.y_fp32)
      static_cast<float*>(p.y)[at * p.y_stride + row] = sums[i];
    else
      static_cast<__nv_bfloat16*>(p.y)[at * p.y_stride + row] = __float2bfloat16(sums[i]);
  }
}

// sums += one step's products of 64 tokens x 128 rows. codes, wide: descriptors; scales: the address of the
// thread's first token's; row_sums: that of the thread's first S.
template <typename S>
__device__ __forceinline__ void multiply_block(uint32_t codes, uint32_t wide, uint32_t scales,
                                               uint32_t row_sums, float (&sums)[S::kResults]) {
  int d[S::kResults];
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) ptx::wgmma(d, codes + 2 * k, wide + 2 * k, k > 0);
  ptx::wgmma_commit();
  // Under the products.
  const float scale0 = ptx::load_shared<float>(scales), scale1 = ptx::load_shared<float>(scales + 8 * 4);
  const auto zero0 = ptx::load_shared<int>(scales + S::kTokens * 4),
             zero1 = ptx::load_shared<int>(scales + (S::kTokens + 8) * 4);
  const bool shifted = __any_sync(~0u, (zero0 | zero1) != 0);
  ptx::wgmma_wait<0>();
  if (shifted) {
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const uint32_t pair = ptx::load_shared<uint32_t>(row_sums + 16 * j);
      const int s0 = static_cast<int16_t>(pair & 0xFFFF), s1 = static_cast<int>(pair) >> 16;
      d[4 * j] -= zero0 * s0;
      d[4 * j + 1] -= zero0 * s1;
      d[4 * j + 2] -= zero1 * s0;
      d[4 * j + 3] -= zero1 * s1;
    }
  }
  // |d| < 2^30, so the conversion rounds once at most, as a product of FP32 does.
#pragma unroll
  for (int i = 0; i < S::kResults; ++i)
    sums[i] = fmaf(i % 4 < 2 ? scale0 : scale1, __int2float_rn(d[i]), sums[i]);
}

template <typename S>
__device__ void multiply_wide(const Params& p, const WideShared<S>& shared, int worker, int rank) {
  // Through a shuffle the compiler knows them to be uniform, and keeps addresses out of vector registers.
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
  const int lane = threadIdx.x % 32;
  const int mine = group * 64 + warp * 16 + lane / 4;  // the thread also has token + 8
  const uint32_t codes = ptx::wgmma_descriptor(shared.codes.codes + group * 64 * kStepColumns);
  const uint32_t wide = ptx::wgmma_descriptor(shared.wide);
  const uint32_t empty = empty_barriers<S>(shared.codes.barriers, lane);
  Ring<S::kStages> ring;
  ZipperSegment segment;
  float sums[S::kBlocks][S::kResults];
  for (int64_t cursor = p.schedule.start(worker); p.schedule.next(worker, cursor, segment);) {
    const int row0 = (segment.row_tile * S::kCluster + rank) * kTileRows;
    // The end reads scales and biases in a chain: let them lie in L1 by then.
    if (lane < 4 && row0 < p.rows) {
      ptx::prefetch_l1(p.row_scale + row0 + lane * 32);
      if (p.bias != nullptr) ptx::prefetch_l1(p.bias + row0 + lane * 32);
    }
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < S::kResults; ++i) sums[b][i] = 0;
    for (int step = segment.first_step; step < segment.last_step; ++step) {
      const int stage = ring.stage;
      ptx::barrier_wait(shared.codes.barriers.full(stage), ring.parity);
      ring.advance();
      const uint32_t left = codes + stage * (S::kCodeBytes / 16), right = wide + stage * (S::kWideBytes / 16);
      const uint32_t scales = shared.codes.scales + stage * S::kScaleBytes + mine * 4;
      const uint32_t row_sums = shared.sums + stage * S::kSumBytes + lane % 4 * 4;
      multiply_block<S>(left, right, scales, row_sums, sums[0]);
      if constexpr (S::kBlocks == 2)
        multiply_block<S>(left + 128 * kStepColumns / 16, right, scales + 128 * 4, row_sums, sums[1]);
      release<S>(empty, stage, lane);
    }
    const int token = segment.token_tile * S::kTokens + mine;
    if constexpr (S::kBlocks == 1) {
      const bool whole = segment.first_step == 0 && segment.last_step == p.schedule.steps;
      if (!whole &&
          !combine<S>(p, shared.last_flags, segment, worker, rank, group, threadIdx.x % 128, sums[0]))
        continue;
    }
    finish_wide(p, row0, token, lane, sums[0]);
    if constexpr (S::kBlocks == 2) finish_wide(p, row0, token + 128, lane, sums[1]);
  }
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    wide_kernel(const __grid_constant__ CUtensorMap codes, const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw[];
  const WideShared<S> shared(ptx::shared_base(raw, 1024));
  const int worker = blockIdx.x / S::kCluster, rank = static_cast<int>(ptx::cluster_rank());
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kPackedStages; ++i) {
      ptx::barrier_init(shared.packed.barriers.full(i), 1);
      ptx::barrier_init(shared.packed.barriers.empty(i), kStrips / 2);
    }
    for (int i = 0; i < S::kStages; ++i) {
      // The copies, and the pairs of strips: each lane that stores S answers for itself.
      ptx::barrier_init(shared.codes.barriers.full(i), 1 + kStrips / 2 * S::kSumLanes);
      ptx::barrier_init(shared.codes.barriers.empty(i), S::kCluster * S::kMathThreads / 32);
    }
    ptx::fence_barrier_init();
  }
  ptx::cluster_sync();
  ptx::allow_next_kernel();
  const int lane = threadIdx.x % 32;
  if (threadIdx.x >= S::kMathThreads) {
    ptx::registers_decrease<S::kOtherRegisters>();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0) - S::kMathThreads / 32;
    if (warp < S::kWidenWarps) widen_weights<S>(p, shared, worker, warp, lane);
    if (warp == S::kWidenWarps) copy_weights<S, S::kPackedStages>(p, shared.packed, worker, rank, lane);
    if (warp == S::kWidenWarps + 1 && lane == 0) copy_activations<S>(p, &codes, shared.codes, worker, rank);
  } else {
    ptx::registers_increase<S::kMathRegisters>();
    multiply_wide<S>(p, shared, worker, rank);
  }
  // No CTA may leave while another of its cluster still arrives on its barriers.
  __syncwarp();
  ptx::cluster_sync();
}

}  // namespace quatrain::ops::zipper
