// What the zipper GEMMs on Hopper share: rings of stages in shared memory, the warps that fill them, and the
// adding up of shares of a tile.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/ptx/bulk_copy.cuh"
#include "ops/cuda/ptx/launch.cuh"
#include "ops/cuda/ptx/mbarrier.cuh"
#include "ops/cuda/ptx/wgmma.cuh"
#include "ops/cuda/zipper_matrix.h"
#include "ops/cuda/zipper_params.h"
#include "ops/cuda/zipper_widen.cuh"

namespace quatrain::ops::zipper {

// A ring's barriers, of up to 16 stages.
struct Barriers {
  uint32_t at;
  static constexpr int kBytes = 256;
  __device__ uint32_t full(int stage) const { return at + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return at + 128 + 8 * stage; }
};

// Weights as they lie in memory. Bit i of a stage's presence: strip i has a residual block.
struct WeightRing {
  Barriers barriers;
  uint32_t chunks, residual, presence;
};

// Codes as wgmma's operand, and the scales and zeros of their tokens.
struct CodeRing {
  Barriers barriers;
  uint32_t codes, scales;
};

// Stage and parity of a ring, advanced alike by producers and consumers.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance(int stages = 1) {  // at most kStages
    stage += stages;
    if (stage >= kStages) {
      stage -= kStages;
      parity ^= 1;
    }
  }
};

// One warp: dense chunks and residual blocks. They do not depend on earlier kernels. The chunks that fill the
// ring first do not wait for the table that says where the residual is: a barrier is told of their bytes
// first, of the residual's later.
template <typename S, int kStages>
__device__ void copy_weights(const Params& p, const WeightRing& to, int worker, int rank, int lane) {
  Ring<kStages> ring;
  ZipperSegment segment;
  const int tiles = (p.rows + kTileRows - 1) / kTileRows;
  const auto copy_chunk = [&](int stage, int64_t number) {
    const uint32_t full = to.barriers.full(stage);
    const uint8_t* chunk = p.chunks + number * S::kChunkBytes;
    ptx::barrier_expect(full, S::kChunkBytes);
    if (p.stream_weights)
      ptx::bulk_copy_stream(to.chunks + stage * S::kChunkBytes, chunk, S::kChunkBytes, full);
    else
      ptx::bulk_copy(to.chunks + stage * S::kChunkBytes, chunk, S::kChunkBytes, full);
  };
  bool filled = false;
  int ahead = 0;  // steps whose chunks are on their way
  for (int64_t cursor = p.schedule.start(worker); p.schedule.next(worker, cursor, segment);) {
    // A cluster's last CTA may lie past the edge: it repeats the last tile and stores nothing.
    const int64_t tile = min(segment.row_tile * S::kCluster + rank, tiles - 1);
    const int64_t first = tile * p.schedule.steps;
    uint32_t entries = 0;
    for (int step = segment.first_step; step < segment.last_step; ++step) {
      const int offset = (step - segment.first_step) % 32;
      if (offset == 0 && step + lane < segment.last_step) entries = __ldg(p.blocks + first + step + lane);
      if (!filled) {
        filled = true;
        ahead = min(kStages, segment.last_step - step);
        if (lane == 0)
          for (int i = 0; i < ahead; ++i) copy_chunk(i, first + step + i);
      }
      const uint32_t entry = __shfl_sync(~0u, entries, offset);
      if (lane == 0) {
        if (ahead <= 0) {
          ptx::barrier_wait(to.barriers.empty(ring.stage), ring.parity ^ 1);
          copy_chunk(ring.stage, first + step);
        }
        const uint32_t full = to.barriers.full(ring.stage);
        ptx::store_shared(to.presence + 4 * ring.stage, entry & 255);
        const uint32_t residual_bytes = __popc(entry & 255) * kBlockBytes;
        ptx::barrier_arrive_expect(full, residual_bytes);
        if (residual_bytes > 0)
          ptx::bulk_copy(to.residual + ring.stage * kStrips * kBlockBytes,
                         p.residual + static_cast<int64_t>(entry >> 8) * kBlockBytes, residual_bytes, full);
      }
      --ahead;
      __syncwarp();
      ring.advance();
    }
  }
}

// One lane: codes, scales and zeros. In a cluster each CTA fetches its share of the codes for all.
template <typename S>
__device__ void copy_activations(const Params& p, const CUtensorMap* codes, const CodeRing& to, int worker,
                                 int rank) {
  ptx::prefetch_tensor_map(codes);
  ptx::wait_for_previous_kernel();
  Ring<S::kStages> ring;
  ZipperSegment segment;
  constexpr int kShare = S::kTokens / S::kCluster;
  for (int64_t cursor = p.schedule.start(worker); p.schedule.next(worker, cursor, segment);) {
    const int token = segment.token_tile * S::kTokens;
    // A tile of 256 tokens may reach past what the arrays hold, in multiples of 128 tokens.
    const uint32_t scale_bytes = 4 * min(S::kTokens, static_cast<int>(p.token_stride) - token);
    for (int step = segment.first_step; step < segment.last_step; ++step) {
      const uint32_t full = to.barriers.full(ring.stage);
      ptx::barrier_wait(to.barriers.empty(ring.stage), ring.parity ^ 1);
      ptx::barrier_arrive_expect(full, S::kCodeBytes + S::kDrains * 2 * scale_bytes);
      const uint32_t share = to.codes + ring.stage * S::kCodeBytes + rank * kShare * kStepColumns;
      if constexpr (S::kCluster == 1)
        ptx::tensor_copy(share, codes, step * kStepColumns, token, full);
      else
        ptx::tensor_copy_multicast(share, codes, step * kStepColumns, token + rank * kShare, full,
                                   (1 << S::kCluster) - 1);
      for (int i = 0; i < S::kDrains; ++i) {
        // Columns past the edge have zero codes and weights: any group will do there.
        const int column = step * kStepColumns + i * S::kDrain;
        const int64_t at =
            static_cast<int64_t>(min(column / p.activation_group, p.activation_groups - 1)) * p.token_stride +
            token;
        const uint32_t scales = to.scales + ring.stage * S::kScaleBytes + i * S::kTokens * 4;
        ptx::bulk_copy(scales, p.scale + at, scale_bytes, full);
        ptx::bulk_copy(scales + S::kDrains * S::kTokens * 4, p.zero + at, scale_bytes, full);
      }
      ring.advance();
    }
  }
}

// Where lane i of a warp tells the i-th CTA of the cluster that a stage is empty: each CTA's copies may reach
// all of them. 0 in the other lanes. Stages lie 8 bytes apart.
template <typename S>
__device__ uint32_t empty_barriers(const Barriers& barriers, int lane) {
  uint32_t at = 0;
  if (lane < S::kCluster)
    at = S::kCluster == 1 ? barriers.empty(0) : ptx::cluster_address(barriers.empty(0), lane);
  asm volatile("" : "+r"(at));  // else the lane is read anew wherever 0 is asked for
  return at;
}

// The whole warp has done with `stage`.
template <typename S>
__device__ __forceinline__ void release(uint32_t barriers, int stage) {
  __syncwarp();
  if (barriers == 0) return;
  if constexpr (S::kCluster == 1)
    ptx::barrier_arrive(barriers + 8 * stage);
  else
    ptx::barrier_arrive_cluster(barriers + 8 * stage);
}

// Adds the shares of a tile that several workers computed, in the order of K. True for the warpgroup that
// arrived last: it then holds the whole sum. last_flags: a word of shared memory a warpgroup.
template <typename S>
__device__ bool combine(const Params& p, uint32_t last_flags, const ZipperSegment& segment, int worker,
                        int rank, int group, int thread, float (&sums)[S::kResults]) {
  constexpr int kVectors = S::kResults / 4;
  const ZipperSchedule& schedule = p.schedule;
  const int first = schedule.first_worker(segment.tile), last = schedule.last_worker(segment.tile);
  const auto share = [&](int of) {
    const int which = schedule.place_of(segment.tile, of);
    const int64_t slot =
        ((static_cast<int64_t>(of) * S::kCluster + rank) * 2 + which) * S::kMathGroups + group;
    return reinterpret_cast<float4*>(p.partial) + slot * kVectors * 128 + thread;
  };
  float4* own = share(worker);
#pragma unroll
  for (int j = 0; j < kVectors; ++j)
    own[j * 128] = make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
  __threadfence();
  ptx::named_barrier_sync(1 + group, 128);
  if (thread == 0) {
    int* arrived =
        p.arrived + (static_cast<int64_t>(segment.tile) * S::kCluster + rank) * S::kMathGroups + group;
    const bool is_last = atomicAdd(arrived, 1) == last - first;
    if (is_last) *arrived = 0;
    ptx::store_shared<uint32_t>(last_flags + 4 * group, is_last);
  }
  ptx::named_barrier_sync(1 + group, 128);
  const bool is_last = ptx::load_shared<uint32_t>(last_flags + 4 * group) != 0;
  ptx::named_barrier_sync(1 + group, 128);
  if (!is_last) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < 4 * kVectors; ++i) sums[i] = 0;
  for (int of = first; of <= last; ++of) {
    const float4* from = share(of);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const float4 v = __ldcg(from + j * 128);
      sums[4 * j] += v.x;
      sums[4 * j + 1] += v.y;
      sums[4 * j + 2] += v.z;
      sums[4 * j + 3] += v.w;
    }
  }
  return true;
}

}  // namespace quatrain::ops::zipper
