// The zipper GEMM for Hopper (sm_90a); docs/zipper.md explains it with a drawing.
//
// A CTA computes 128 rows of W against kTokens rows of x: math warpgroups of 64 rows each, and one producer
// warpgroup of which warp 0 copies weights and warp 1 activations into a ring of stages of 128 columns.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/ptx/bulk_copy.cuh"
#include "ops/cuda/ptx/launch.cuh"
#include "ops/cuda/ptx/mbarrier.cuh"
#include "ops/cuda/ptx/wgmma.cuh"
#include "ops/cuda/zipper_matrix.h"
#include "ops/cuda/zipper_schedule.h"
#include "ops/cuda/zipper_widen.cuh"

namespace quatrain::ops::zipper {

struct Params {
  const uint8_t* chunks;
  const uint8_t* residual;
  const uint32_t* blocks;
  const float* row_scale;
  const float* bias;  // or null
  const float* scale;
  const int32_t* zero;
  int64_t token_stride;
  int activation_group, activation_groups;
  int rows, tokens;
  bool stream_weights;  // each weight is read once: let it leave L2 first
  ZipperSchedule schedule;
  float* partial;
  int* arrived;
  void* y;  // FP32 or BF16
  bool y_fp32;
  int64_t y_stride;
};

// At 128 tokens four warpgroups share the tile, 64 rows x 64 tokens each: a drain costs as many issue slots
// as the product costs tensor cycles, and four warps a scheduler hide its latencies. Smaller tiles are bound
// by memory; two warpgroups read each weight once.
template <int kTokensValue, int kDrainValue, bool kGroupScalesValue>
struct Shape {
  static constexpr int kTokens = kTokensValue, kDrain = kDrainValue;
  static constexpr bool kGroupScales = kGroupScalesValue;
  static constexpr int kTokenGroups = kTokens == 128 ? 2 : 1;
  static constexpr int kCluster = kTokens == 128 ? 2 : 1;
  static constexpr int kColumns = kTokens / kTokenGroups;  // tokens of a warpgroup: wgmma's N
  static constexpr int kResults = kColumns / 2;            // of a thread
  static constexpr int kDrains = kStepColumns / kDrain;
  static constexpr int kMathGroups = 2 * kTokenGroups;
  static constexpr int kMathThreads = 128 * kMathGroups, kThreads = kMathThreads + 128;
  static constexpr int kCtasPerSm = kTokens <= 32 ? 2 : 1;
  // What setmaxnreg deals out must fit what the CTA got at its launch, 65,536 / kThreads rounded down to 8 a
  // thread: warps that ask for more wait for ever.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kMathGroups == 4 ? 32 : 40,
                       kMathRegisters = kMathGroups == 4 ? 112 : 232;
  static_assert(kMathThreads * kMathRegisters + 128 * kProducerRegisters <= kThreads * kLaunchRegisters);
  static constexpr int kCodeBytes = kTokens * kStepColumns;
  static constexpr int kStripBytes = strip_bytes(kDrain, kGroupScales);
  static constexpr int kChunkBytes = kStrips * kStripBytes;
  static constexpr int kScaleBytes = kDrains * kTokens * 8;  // scales, then zeros
  static constexpr int kStageBytes = kCodeBytes + kChunkBytes + 8 * kBlockBytes + kScaleBytes;
  static constexpr int kHeaderBytes = 1024;  // barriers, presence masks, flags
  static constexpr int kStages =
      (227 * 1024 / kCtasPerSm - 1024 * kCtasPerSm - kHeaderBytes - 1024) / kStageBytes;
  static constexpr int kSharedBytes = kHeaderBytes + 1024 + kStages * kStageBytes;  // 1,024 for alignment
  static_assert(kStages >= 3 && kStages <= 16, "the ring must hide memory latency and fit the header");
  static_assert(kCodeBytes % 1024 == 0, "the swizzle needs tiles aligned to 1,024 bytes");
};

struct Header {
  uint64_t full[16];
  uint64_t empty[16];
  uint32_t presence[16];
  int last[4];
};

template <typename S>
struct Shared {
  Header* header;
  uint8_t *codes, *chunks, *residual, *scales;

  __device__ explicit Shared(uint8_t* raw) {
    raw += (1024 - ptx::shared_address(raw) % 1024) % 1024;
    codes = raw;
    chunks = codes + S::kStages * S::kCodeBytes;
    residual = chunks + S::kStages * S::kChunkBytes;
    scales = residual + S::kStages * 8 * kBlockBytes;
    header = reinterpret_cast<Header*>(scales + S::kStages * S::kScaleBytes);
  }
};

// Stage and parity of the ring, advanced alike by producers and consumers.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Warp 0: dense chunks and residual blocks. They do not depend on earlier kernels.
template <typename S, typename Memory>
__device__ void copy_weights(const Params& p, const Memory& shared, int worker, int rank, int lane) {
  Ring<S::kStages> ring;
  ZipperSegment segment;
  const int tiles = (p.rows + kTileRows - 1) / kTileRows;
  for (int64_t cursor = p.schedule.start(worker); p.schedule.next(worker, cursor, segment);) {
    // A cluster's last CTA may lie past the edge: it repeats the last tile and stores nothing.
    const int64_t tile = min(segment.row_tile * S::kCluster + rank, tiles - 1);
    const int64_t first = tile * p.schedule.steps;
    uint32_t entries = 0;
    for (int step = segment.first_step; step < segment.last_step; ++step) {
      const int offset = (step - segment.first_step) % 32;
      if (offset == 0 && step + lane < segment.last_step) entries = __ldg(p.blocks + first + step + lane);
      const uint32_t entry = __shfl_sync(~0u, entries, offset);
      if (lane == 0) {
        Header& h = *shared.header;
        ptx::barrier_wait(&h.empty[ring.stage], ring.parity ^ 1);
        h.presence[ring.stage] = entry & 255;
        const uint32_t residual_bytes = __popc(entry & 255) * kBlockBytes;
        ptx::barrier_arrive_expect(&h.full[ring.stage], S::kChunkBytes + residual_bytes);
        const uint8_t* chunk = p.chunks + (first + step) * S::kChunkBytes;
        uint8_t* to = shared.chunks + ring.stage * S::kChunkBytes;
        if (p.stream_weights)
          ptx::bulk_copy_stream(to, chunk, S::kChunkBytes, &h.full[ring.stage]);
        else
          ptx::bulk_copy(to, chunk, S::kChunkBytes, &h.full[ring.stage]);
        if (residual_bytes > 0)
          ptx::bulk_copy(shared.residual + ring.stage * 8 * kBlockBytes,
                         p.residual + static_cast<int64_t>(entry >> 8) * kBlockBytes, residual_bytes,
                         &h.full[ring.stage]);
      }
      __syncwarp();
      ring.advance();
    }
  }
}

// Warp 1: codes, scales and zeros. In a cluster each CTA fetches its share of the codes for all.
template <typename S, typename Memory>
__device__ void copy_activations(const Params& p, const CUtensorMap* codes, const Memory& shared, int worker,
                                 int rank, int lane) {
  if (lane != 0) return;
  ptx::prefetch_tensor_map(codes);
  ptx::wait_for_previous_kernel();
  Ring<S::kStages> ring;
  ZipperSegment segment;
  constexpr int kShare = S::kTokens / S::kCluster;
  for (int64_t cursor = p.schedule.start(worker); p.schedule.next(worker, cursor, segment);) {
    const int token = segment.token_tile * S::kTokens;
    for (int step = segment.first_step; step < segment.last_step; ++step) {
      Header& h = *shared.header;
      ptx::barrier_wait(&h.empty[ring.stage], ring.parity ^ 1);
      ptx::barrier_arrive_expect(&h.full[ring.stage], S::kCodeBytes + S::kScaleBytes);
      uint8_t* to = shared.codes + ring.stage * S::kCodeBytes + rank * kShare * kStepColumns;
      if constexpr (S::kCluster == 1)
        ptx::tensor_copy(to, codes, step * kStepColumns, token, &h.full[ring.stage]);
      else
        ptx::tensor_copy_multicast(to, codes, step * kStepColumns, token + rank * kShare, &h.full[ring.stage],
                                   (1 << S::kCluster) - 1);
      for (int i = 0; i < S::kDrains; ++i) {
        // Columns past the edge have zero codes and weights: any group will do there.
        const int column = step * kStepColumns + i * S::kDrain;
        const int64_t at =
            static_cast<int64_t>(min(column / p.activation_group, p.activation_groups - 1)) * p.token_stride +
            token;
        uint8_t* scales = shared.scales + ring.stage * S::kScaleBytes + i * S::kTokens * 4;
        ptx::bulk_copy(scales, p.scale + at, S::kTokens * 4, &h.full[ring.stage]);
        ptx::bulk_copy(scales + S::kDrains * S::kTokens * 4, p.zero + at, S::kTokens * 4,
                       &h.full[ring.stage]);
      }
      ring.advance();
    }
  }
}

// Where a math warp finds the operands of one step.
template <typename S>
struct Stage {
  const uint8_t *strips, *residual;
  const float* scales;  // of the warpgroup's tokens
  const int32_t* zeros;
  uint32_t codes;  // descriptor of the warpgroup's tokens
  uint32_t presence;

  __device__ Stage(const Shared<S>& shared, int stage, int first_token) {
    strips = shared.chunks + stage * S::kChunkBytes;
    residual = shared.residual + stage * 8 * kBlockBytes;
    scales = reinterpret_cast<const float*>(shared.scales + stage * S::kScaleBytes) + first_token;
    zeros = reinterpret_cast<const int32_t*>(scales + S::kDrains * S::kTokens);
    codes = ptx::wgmma_descriptor(ptx::shared_address(shared.codes) + stage * S::kCodeBytes +
                                  first_token * kStepColumns);
    presence = shared.header->presence[stage];
  }
  /// Does any token of the warpgroup have a zero in this drain?
  __device__ bool shifted(int drain, int lane) const {
    int any = lane < S::kColumns ? zeros[drain * S::kTokens + lane] : 0;
    if constexpr (S::kColumns > 32) any |= zeros[drain * S::kTokens + 32 + lane];
    return __any_sync(~0u, any != 0);
  }
};

// Starts the products of one drain of the warpgroup's 64 rows: d = -z S + sum of code * c. Where no token has
// a zero, d starts at nothing, which the instruction does by itself.
template <typename S>
__device__ __forceinline__ void start_products(const Stage<S>& stage, int drain, bool shifted, int strip,
                                               int lane, const uint32_t (&a)[16], int (&d)[S::kResults]) {
  if (shifted) {
    const auto* sums = reinterpret_cast<const int16_t*>(stage.strips + (strip + 1) * S::kStripBytes) -
                       (S::kDrains - drain) * 16 + lane / 4;
    const int sum0 = -sums[0], sum1 = -sums[8];
#pragma unroll
    for (int j = 0; j < S::kColumns / 8; ++j) {
      const int2 z = reinterpret_cast<const int2*>(stage.zeros + drain * S::kTokens)[4 * j + lane % 4];
      d[4 * j] = z.x * sum0;
      d[4 * j + 1] = z.y * sum0;
      d[4 * j + 2] = z.x * sum1;
      d[4 * j + 3] = z.y * sum1;
    }
  }
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < S::kDrain / 32; ++k)
    ptx::wgmma(d, a + drain * (S::kDrain / 8) + 4 * k, stage.codes + drain * (S::kDrain / 16) + 2 * k,
               k > 0 || shifted);
  ptx::wgmma_commit();
}

// sums += s (scale) * d: |d| < 2^30, so the conversion rounds once at most, as a product of FP32 does.
template <typename S>
__device__ __forceinline__ void drain_products(const float* scales, float scale0, float scale1, int lane,
                                               const int (&d)[S::kResults], float (&sums)[S::kResults]) {
#pragma unroll
  for (int j = 0; j < S::kColumns / 8; ++j) {
    const float2 s = reinterpret_cast<const float2*>(scales)[4 * j + lane % 4];
    sums[4 * j] = fmaf(S::kGroupScales ? s.x * scale0 : s.x, __int2float_rn(d[4 * j]), sums[4 * j]);
    sums[4 * j + 1] =
        fmaf(S::kGroupScales ? s.y * scale0 : s.y, __int2float_rn(d[4 * j + 1]), sums[4 * j + 1]);
    sums[4 * j + 2] =
        fmaf(S::kGroupScales ? s.x * scale1 : s.x, __int2float_rn(d[4 * j + 2]), sums[4 * j + 2]);
    sums[4 * j + 3] =
        fmaf(S::kGroupScales ? s.y * scale1 : s.y, __int2float_rn(d[4 * j + 3]), sums[4 * j + 3]);
  }
}

// Adds the shares of a tile that several workers computed, in the order of K. True for the warpgroup that
// arrived last: it then holds the whole sum.
template <typename S>
__device__ bool combine(const Params& p, int* last_flags, const ZipperSegment& segment, int worker, int rank,
                        int group, int thread, float (&sums)[S::kResults]) {
  constexpr int kVectors = S::kResults / 4;
  const ZipperSchedule& schedule = p.schedule;
  const int64_t first_position = static_cast<int64_t>(segment.tile) * schedule.steps;
  const int first = schedule.worker_of(first_position);
  const int last = schedule.worker_of(first_position + schedule.steps - 1);
  // A worker has at most two shared tiles: the one it starts in and the one it ends in.
  const auto share = [&](int of) {
    const int which = schedule.begin(of) / schedule.steps == segment.tile ? 0 : 1;
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
    last_flags[group] = is_last;
  }
  ptx::named_barrier_sync(1 + group, 128);
  const bool is_last = last_flags[group];
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

// Results of a 64-row block: `row` and row + 8, tokens first_token + 8 j + {0, 1}.
template <bool kWhole, int kResults>
__device__ void store(const Params& p, int row, int first_token, const float (&sums)[kResults], float* y) {
  y += first_token * p.y_stride + row;
#pragma unroll
  for (int i = 0; i < kResults; ++i) {
    const int token = i / 4 * 8 + i % 2, at = i % 4 / 2 * 8;
    if (kWhole || (row + at < p.rows && first_token + token < p.tokens)) y[token * p.y_stride + at] = sums[i];
  }
}

// BF16: lanes of neighbouring rows swap a token, so that each stores two rows of one token at once.
template <bool kWhole, int kResults>
__device__ void store(const Params& p, int row, int first_token, const float (&sums)[kResults],
                      __nv_bfloat16* y) {
  const int odd = row & 1;
  first_token += odd;
  row -= odd;
  y += first_token * p.y_stride + row;
#pragma unroll
  for (int i = 0; i < kResults / 2; ++i) {
    const float keep = odd ? sums[2 * i + 1] : sums[2 * i], send = odd ? sums[2 * i] : sums[2 * i + 1];
    const float other = __shfl_xor_sync(~0u, send, 4);
    const float low = odd ? other : keep, high = odd ? keep : other;
    __nv_bfloat16* to = y + i / 2 * 8 * p.y_stride + i % 2 * 8;
    if (kWhole) {
      *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(low, high);
    } else if (first_token + i / 2 * 8 < p.tokens) {
      if (row + i % 2 * 8 < p.rows) to[0] = __float2bfloat16(low);
      if (row + i % 2 * 8 + 1 < p.rows) to[1] = __float2bfloat16(high);
    }
  }
}

// Scale, bias and store of a finished block.
template <typename S>
__device__ void finish(const Params& p, int row0, int token0, int warp, int lane,
                       float (&sums)[S::kResults]) {
  const int row = row0 + warp * 16 + lane / 4;  // the thread also has row + 8
  if (row - lane / 4 >= p.rows) return;         // past the edge: uniform over the warp
  const float scale0 = p.row_scale[row], scale1 = p.row_scale[row + 8];
  const float bias0 = p.bias != nullptr ? p.bias[row] : 0.0f,
              bias1 = p.bias != nullptr ? p.bias[row + 8] : 0.0f;
#pragma unroll
  for (int i = 0; i < S::kResults; ++i)
    sums[i] = i % 4 < 2 ? fmaf(sums[i], scale0, bias0) : fmaf(sums[i], scale1, bias1);
  const int token = token0 + lane % 4 * 2;
  const bool whole = row0 + 64 <= p.rows && token0 + S::kColumns <= p.tokens;
  if (p.y_fp32) {
    auto* y = static_cast<float*>(p.y);
    whole ? store<true>(p, row, token, sums, y) : store<false>(p, row, token, sums, y);
  } else {
    auto* y = static_cast<__nv_bfloat16*>(p.y);
    const bool paired = p.y_stride % 2 == 0 && (reinterpret_cast<uintptr_t>(y) & 3) == 0;
    whole&& paired ? store<true>(p, row, token, sums, y) : store<false>(p, row, token, sums, y);
  }
}

template <typename S>
__device__ __forceinline__ void release(Header& header, int stage, int lane) {
  __syncwarp();
  if (lane != 0) return;
  if constexpr (S::kCluster == 1) {
    ptx::barrier_arrive(&header.empty[stage]);
  } else {
    for (int cta = 0; cta < S::kCluster; ++cta) ptx::barrier_arrive_remote(&header.empty[stage], cta);
  }
}

template <typename S>
__device__ void multiply(const Params& p, const Shared<S>& shared, int worker, int rank) {
  // Through a shuffle the compiler knows them to be uniform, and keeps addresses out of vector registers.
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
  const int lane = threadIdx.x % 32;
  const int row_half = group % 2, first_token = group / 2 * S::kColumns, strip = row_half * 4 + warp;
  Header& header = *shared.header;
  Ring<S::kStages> ring;
  ZipperSegment segment;
  float sums[S::kResults];
  uint4 dense[2];  // nibbles of the step to come
  const auto load_dense = [&] {
    ptx::barrier_wait(&header.full[ring.stage], ring.parity);
    const auto* from =
        reinterpret_cast<const uint4*>(shared.chunks + ring.stage * S::kChunkBytes + strip * S::kStripBytes) +
        lane;
    dense[0] = from[0];
    dense[1] = from[32];
  };

  for (int64_t cursor = p.schedule.start(worker); p.schedule.next(worker, cursor, segment);) {
#pragma unroll
    for (int i = 0; i < S::kResults; ++i) sums[i] = 0;
    load_dense();
    for (int step = segment.first_step; step < segment.last_step; ++step) {
      const int current = ring.stage;
      const Stage<S> stage(shared, current, first_token);
      uint32_t a[16];
      if (stage.presence >> strip & 1) {
        const int slot = __popc(stage.presence & ((1u << strip) - 1));
        const auto* lo = reinterpret_cast<const uint4*>(stage.residual + slot * kBlockBytes) + lane;
        widen(dense[0], dense[1], lo[0], lo[32], a);
      } else {
        widen(dense[0], dense[1], a);
      }
      ring.advance();
#pragma unroll
      for (int i = 0; i < S::kDrains; ++i) {
        float scale0 = 1, scale1 = 1;
        if constexpr (S::kGroupScales) {
          const auto* weight_scales =
              reinterpret_cast<const __half*>(stage.strips + strip * S::kStripBytes + kBlockBytes) + i * 16 +
              lane / 4;
          scale0 = __half2float(weight_scales[0]);
          scale1 = __half2float(weight_scales[8]);
        }
        int d[S::kResults];
        start_products<S>(stage, i, stage.shifted(i, lane), strip, lane, a, d);
        if (i == S::kDrains - 1 && step + 1 < segment.last_step) load_dense();  // under the products
        ptx::wgmma_wait<0>();
        drain_products<S>(stage.scales + i * S::kTokens, scale0, scale1, lane, d, sums);
      }
      release<S>(header, current, lane);
    }

    const bool whole = segment.first_step == 0 && segment.last_step == p.schedule.steps;
    if (!whole && !combine<S>(p, header.last, segment, worker, rank, group, threadIdx.x % 128, sums))
      continue;
    finish<S>(p, (segment.row_tile * S::kCluster + rank) * kTileRows + row_half * 64,
              segment.token_tile * S::kTokens + first_token, warp, lane, sums);
  }
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, S::kCtasPerSm)
    zipper_kernel(const __grid_constant__ CUtensorMap codes, const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw[];
  const Shared<S> shared(raw);
  const int worker = blockIdx.x / S::kCluster,
            rank = S::kCluster == 1 ? 0 : static_cast<int>(ptx::cluster_rank());
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      ptx::barrier_init(&shared.header->full[i], 2);
      ptx::barrier_init(&shared.header->empty[i], S::kCluster * S::kMathThreads / 32);
    }
    ptx::fence_barrier_init();
  }
  if constexpr (S::kCluster > 1)
    ptx::cluster_sync();
  else
    __syncthreads();
  ptx::allow_next_kernel();
  const int lane = threadIdx.x % 32;
  if (threadIdx.x >= S::kMathThreads) {
    if constexpr (S::kCtasPerSm == 1) ptx::registers_decrease<S::kProducerRegisters>();
    const int warp = threadIdx.x / 32 - S::kMathThreads / 32;
    if (warp == 0) copy_weights<S>(p, shared, worker, rank, lane);
    if (warp == 1) copy_activations<S>(p, &codes, shared, worker, rank, lane);
  } else {
    if constexpr (S::kCtasPerSm == 1) ptx::registers_increase<S::kMathRegisters>();
    multiply<S>(p, shared, worker, rank);
  }
  // No CTA may leave while another of its cluster still arrives on its barriers.
  if constexpr (S::kCluster > 1) {
    __syncwarp();
    ptx::cluster_sync();
  }
}

}  // namespace quatrain::ops::zipper
