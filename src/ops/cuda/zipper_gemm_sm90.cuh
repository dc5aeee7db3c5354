// The zipper GEMM for Hopper (sm_90a); docs/zipper.md explains it with a drawing.
//
// A CTA computes 128 rows of W against kTokens rows of x: math warpgroups of 64 rows each, and one producer
// warpgroup of which warp 0 copies weights and warp 1 activations into a ring of stages of 128 columns, and
// warps 2 and 3 prepare the tiles' ends.
#pragma once

#include "ops/cuda/zipper_exchange.cuh"
#include "ops/cuda/zipper_pipeline.cuh"

namespace quatrain::ops::zipper {

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
  // What setmaxnreg deals out must fit what the CTA got at its launch, its share of 65,536 rounded down to 8
  // a thread: warps that ask for more wait for ever.
  static constexpr int kLaunchRegisters = 65536 / (kThreads * kCtasPerSm) / 8 * 8;
  static constexpr int kMathRegisters = kTokens == 128 ? 112 : kTokens == 64 ? 224 : 96;
  static constexpr int kProducerRegisters =
      (kThreads * kLaunchRegisters - kMathThreads * kMathRegisters) / 128;  // 32, 56, 48
  static constexpr int kCodeBytes = kTokens * kStepColumns;
  static constexpr int kStripBytes = strip_bytes(kDrain, kGroupScales);
  static constexpr int kChunkBytes = kStrips * kStripBytes;
  static constexpr int kScaleBytes = kDrains * kTokens * 8;  // scales, then zeros
  static constexpr int kStageBytes = kCodeBytes + kChunkBytes + 8 * kBlockBytes + kScaleBytes;
  static constexpr int kExchangeTiles = exchange_tiles(kTokens), kExchangeSlices = exchange_slices(kTokens);
  static constexpr int kExchangeBytes = kExchangeTiles * kExchangeSlices * 16 * kMathThreads;
  static constexpr int kHeaderBytes = 1024;  // barriers, presence masks, flags
  static constexpr int kStages =
      (227 * 1024 / kCtasPerSm - 1024 * kCtasPerSm - kHeaderBytes - 1024 - kExchangeBytes) / kStageBytes;
  // 1,024 for alignment
  static constexpr int kSharedBytes = kHeaderBytes + 1024 + kStages * kStageBytes + kExchangeBytes;
  static_assert(kStages >= 3 && kStages <= 16, "the ring must hide memory latency and fit the header");
  static_assert(kCodeBytes % 1024 == 0, "the swizzle needs tiles aligned to 1,024 bytes");
};

// One ring for weights and codes.
template <typename S>
struct Shared {
  CodeRing codes;
  WeightRing weights;
  Exchange exchange;
  uint32_t last_flags;

  __device__ explicit Shared(uint32_t at) {
    codes.codes = at;
    weights.chunks = at + S::kStages * S::kCodeBytes;
    weights.residual = weights.chunks + S::kStages * S::kChunkBytes;
    codes.scales = weights.residual + S::kStages * kStrips * kBlockBytes;
    exchange.sums = codes.scales + S::kStages * S::kScaleBytes;
    codes.barriers.at = weights.barriers.at = exchange.sums + S::kExchangeBytes;
    weights.presence = codes.barriers.at + Barriers::kBytes;
    last_flags = weights.presence + 4 * 16;
    exchange.arrived = last_flags + 4 * 4;
  }
};

// Where a math warp finds the operands of one step.
template <typename S>
struct Stage {
  uint32_t strips, residual;
  uint32_t scales, zeros;  // of the warpgroup's tokens
  uint32_t codes;          // descriptor of the warpgroup's tokens

  __device__ Stage(const Shared<S>& shared, int stage, int first_token) {
    strips = shared.weights.chunks + stage * S::kChunkBytes;
    residual = shared.weights.residual + stage * kStrips * kBlockBytes;
    scales = shared.codes.scales + stage * S::kScaleBytes + first_token * 4;
    zeros = scales + S::kDrains * S::kTokens * 4;
    codes = ptx::wgmma_descriptor(shared.codes.codes + stage * S::kCodeBytes + first_token * kStepColumns);
  }
  /// Does any token of the warpgroup have a zero in this drain?
  __device__ bool shifted(int drain, int lane) const {
    const uint32_t at = zeros + (drain * S::kTokens + lane) * 4;
    uint32_t any = lane < S::kColumns ? ptx::load_shared<uint32_t>(at) : 0;
    if constexpr (S::kColumns > 32) any |= ptx::load_shared<uint32_t>(at + 32 * 4);
    return __any_sync(~0u, any != 0);
  }
};

// Starts the products of one drain of the warpgroup's 64 rows: d = -z S + sum of code * c. Where no token has
// a zero, d starts at nothing, which the instruction does by itself.
template <typename S>
__device__ __forceinline__ void start_products(const Stage<S>& stage, int drain, bool shifted, int strip,
                                               int lane, const uint32_t (&a)[16], int (&d)[S::kResults]) {
  if (shifted) {
    const uint32_t sums =
        stage.strips + (strip + 1) * S::kStripBytes - (S::kDrains - drain) * 32 + lane / 4 * 2;
    const int sum0 = -ptx::load_shared<int16_t>(sums), sum1 = -ptx::load_shared<int16_t>(sums + 16);
#pragma unroll
    for (int j = 0; j < S::kColumns / 8; ++j) {
      const int2 z = ptx::load_shared<int2>(stage.zeros + drain * S::kTokens * 4 + 32 * j + lane % 4 * 8);
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
__device__ __forceinline__ void drain_products(uint32_t scales, float scale0, float scale1, int lane,
                                               const int (&d)[S::kResults], float (&sums)[S::kResults]) {
#pragma unroll
  for (int j = 0; j < S::kColumns / 8; ++j) {
    const float2 s = ptx::load_shared<float2>(scales + 32 * j + lane % 4 * 8);
    sums[4 * j] = fmaf(S::kGroupScales ? s.x * scale0 : s.x, __int2float_rn(d[4 * j]), sums[4 * j]);
    sums[4 * j + 1] =
        fmaf(S::kGroupScales ? s.y * scale0 : s.y, __int2float_rn(d[4 * j + 1]), sums[4 * j + 1]);
    sums[4 * j + 2] =
        fmaf(S::kGroupScales ? s.x * scale1 : s.x, __int2float_rn(d[4 * j + 2]), sums[4 * j + 2]);
    sums[4 * j + 3] =
        fmaf(S::kGroupScales ? s.y * scale1 : s.y, __int2float_rn(d[4 * j + 3]), sums[4 * j + 3]);
  }
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

// Scale, bias and store of a finished block: 64 rows, as many tokens as make kResults of a thread.
template <int kResults>
__device__ void finish(const Params& p, int row0, int token0, int warp, int lane, float (&sums)[kResults]) {
  const int row = row0 + warp * 16 + lane / 4;  // the thread also has row + 8
  if (row - lane / 4 >= p.rows) return;         // past the edge: uniform over the warp
  const float scale0 = p.row_scale[row], scale1 = p.row_scale[row + 8];
  const float bias0 = p.bias != nullptr ? p.bias[row] : 0.0f,
              bias1 = p.bias != nullptr ? p.bias[row + 8] : 0.0f;
#pragma unroll
  for (int i = 0; i < kResults; ++i)
    sums[i] = i % 4 < 2 ? fmaf(sums[i], scale0, bias0) : fmaf(sums[i], scale1, bias1);
  const int token = token0 + lane % 4 * 2;
  const bool whole = row0 + 64 <= p.rows && token0 + 2 * kResults <= p.tokens;
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
__device__ void multiply(const Params& p, const Shared<S>& shared, int worker, int rank) {
  // Through a shuffle the compiler knows them to be uniform, and keeps addresses out of vector registers.
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
  const int lane = threadIdx.x % 32;
  const int row_half = group % 2, first_token = group / 2 * S::kColumns, strip = row_half * 4 + warp;
  const uint32_t empty = empty_barriers<S>(shared.codes.barriers, lane);
  Ring<S::kStages> ring;
  ZipperSegment segment;
  float sums[S::kResults];
  // Of the step to come, loaded under the products of the one before.
  uint4 dense[2];
  uint32_t presence = 0;
  bool shifted = false;                      // its first drain
  constexpr bool kAhead = S::kTokens <= 64;  // where registers are left
  const auto look = [&](int at, const Stage<S>& stage) {
    presence = ptx::load_shared<uint32_t>(shared.weights.presence + 4 * at);
    shifted = stage.shifted(0, lane);
  };
  const auto load_step = [&] {
    ptx::barrier_wait(shared.codes.barriers.full(ring.stage), ring.parity);
    const Stage<S> stage(shared, ring.stage, first_token);
    const uint32_t from = stage.strips + strip * S::kStripBytes + lane * 16;
    dense[0] = ptx::load_shared<uint4>(from);
    dense[1] = ptx::load_shared<uint4>(from + kBlockBytes / 2);
    if constexpr (kAhead) look(ring.stage, stage);
  };

  for (int64_t cursor = p.schedule.start(worker); p.schedule.next(worker, cursor, segment);) {
#pragma unroll
    for (int i = 0; i < S::kResults; ++i) sums[i] = 0;
    load_step();
    for (int step = segment.first_step; step < segment.last_step; ++step) {
      const int current = ring.stage;
      const Stage<S> stage(shared, current, first_token);
      if constexpr (!kAhead) look(current, stage);
      uint32_t a[16];
      if (presence >> strip & 1) {
        const int slot = __popc(presence & ((1u << strip) - 1));
        const uint32_t lo = stage.residual + slot * kBlockBytes + lane * 16;
        widen(dense[0], ptx::load_shared<uint4>(lo), a);
        widen(dense[1], ptx::load_shared<uint4>(lo + kBlockBytes / 2), a + 8);
      } else {
        widen(dense[0], a);
        widen(dense[1], a + 8);
      }
      ring.advance();
#pragma unroll
      for (int i = 0; i < S::kDrains; ++i) {
        float scale0 = 1, scale1 = 1;
        if constexpr (S::kGroupScales) {
          const uint32_t scales = stage.strips + strip * S::kStripBytes + kBlockBytes + i * 32 + lane / 4 * 2;
          scale0 = __half2float(ptx::load_shared<__half>(scales));
          scale1 = __half2float(ptx::load_shared<__half>(scales + 16));
        }
        int d[S::kResults];
        start_products<S>(stage, i, i == 0 ? shifted : stage.shifted(i, lane), strip, lane, a, d);
        if (i == S::kDrains - 1 && step + 1 < segment.last_step) load_step();  // under the products
        ptx::wgmma_wait<0>();
        drain_products<S>(stage.scales + i * S::kTokens * 4, scale0, scale1, lane, d, sums);
      }
      release<S>(empty, current);
    }

    if (!p.schedule.whole(segment)) {
      if (S::kExchangeTiles > 0 && p.schedule.cluster > 1) {
        send_sums<S>(p, shared.exchange, segment, worker, sums);
        continue;
      }
      if (!combine<S>(p, shared.last_flags, segment, worker, rank, group, threadIdx.x % 128, sums)) continue;
    }
    finish(p, (segment.row_tile * S::kCluster + rank) * kTileRows + row_half * 64,
           segment.token_tile * S::kTokens + first_token, warp, lane, sums);
  }

  if constexpr (S::kExchangeTiles > 0) {
    if (p.schedule.cluster == 1) return;
    ptx::barrier_wait(shared.exchange.arrived, 0);
    for (int64_t cursor = p.schedule.start(worker); p.schedule.next(worker, cursor, segment);) {
      if (p.schedule.whole(segment)) continue;
      add_sums<S>(p, shared.exchange, segment, worker, [&](int slice, float(&of)[4]) {
        finish(p, segment.row_tile * kTileRows + row_half * 64, segment.token_tile * S::kTokens + 8 * slice,
               warp, lane, of);
      });
    }
  }
}

// One warp: brings scales and biases of the worker's tiles into L1, so that no tile's end waits for memory.
template <typename S>
__device__ void prefetch_ends(const Params& p, int worker, int rank, int lane) {
  ZipperSegment segment;
  for (int64_t cursor = p.schedule.start(worker); p.schedule.next(worker, cursor, segment);) {
    // Lines of 128 bytes.
    const int row = (segment.row_tile * S::kCluster + rank) * kTileRows + lane % 4 * 32;
    const float* from = lane < 4 ? p.row_scale : p.bias;
    if (lane < 8 && from != nullptr && row < p.rows) ptx::prefetch_l1(from + row);
  }
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, S::kCtasPerSm)
    zipper_kernel(const __grid_constant__ CUtensorMap codes, const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw[];
  const Shared<S> shared(ptx::shared_base(raw, 1024));
  const int worker = blockIdx.x / S::kCluster,
            rank = S::kCluster == 1 ? 0 : static_cast<int>(ptx::cluster_rank());
  const bool sharing = S::kExchangeTiles > 0 && p.schedule.cluster > 1;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      ptx::barrier_init(shared.codes.barriers.full(i), 2);
      ptx::barrier_init(shared.codes.barriers.empty(i), S::kCluster * S::kMathThreads / 32);
    }
    if (sharing) ptx::barrier_init(shared.exchange.arrived, 1);
    ptx::fence_barrier_init();
  }
  if constexpr (S::kCluster > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
    if (sharing) ptx::cluster_arrive_relaxed();
  }
  ptx::allow_next_kernel();
  const int lane = threadIdx.x % 32;
  if (threadIdx.x >= S::kMathThreads) {
    ptx::registers_decrease<S::kProducerRegisters>();
    const int warp = threadIdx.x / 32 - S::kMathThreads / 32;
    if (warp == 0) copy_weights<S, S::kStages>(p, shared.weights, worker, rank, lane);
    if (warp == 1 && lane == 0) copy_activations<S>(p, &codes, shared.codes, worker, rank);
    if (warp == 2) prefetch_ends<S>(p, worker, rank, lane);
    if constexpr (S::kExchangeTiles > 0) {
      if (sharing && warp == 3 && lane == 0) expect_sums<S>(p, shared.exchange, worker);
    }
    if (sharing) {
      __syncwarp();
      ptx::cluster_wait();
    }
  } else {
    ptx::registers_increase<S::kMathRegisters>();
    if (sharing) ptx::cluster_wait();  // all have begun, and may be sent sums
    multiply<S>(p, shared, worker, rank);
  }
  // No CTA may leave while another of its cluster still arrives on its barriers.
  if constexpr (S::kCluster > 1) {
    __syncwarp();
    ptx::cluster_sync();
  }
}

}  // namespace quatrain::ops::zipper
