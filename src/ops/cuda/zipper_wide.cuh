// The zipper GEMM for many tokens on Hopper (sm_90a); docs/zipper.md explains it with a drawing.
//
// Tokens are the rows of the product (wgmma's A), weights its columns (B), both unsigned bytes in shared
// memory. A thread then holds results of two tokens a block of 64, and a drain is one multiply-add a result:
// bytes that are not negative have sums below 2^24, and such an integer, read as an FP32 number, is its
// 2^-149th. Warps of their own widen the weights, once a CTA, into shared memory.
#pragma once

#include "ops/cuda/zipper_pipeline.cuh"
#include "ops/cuda/zipper_wide_activations.h"

namespace quatrain::ops::zipper {

// Every operand byte crosses shared memory, whose 128 bytes a cycle are the bound: warpgroups of two blocks
// halve what widening costs a product. A warpgroup drains under the other one's products.
template <int kBlocksValue>
struct WideShape {
  static constexpr int kBlocks = kBlocksValue;  // of 64 tokens a math warpgroup
  static constexpr int kTokens = 128 * kBlocks;
  static constexpr int kCluster = 2;  // CTAs of neighbouring row tiles and the same tokens, which they share
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
  static constexpr int kScaleBytes = kTokens * 4;
  static constexpr int kStages = kBlocks == 1 ? 4 : 3, kPackedStages = 4;
  // S of steps that a step of zeros may still need, while those after it are widened.
  static constexpr int kSumSlots = kZeroSteps + 2 * kStages, kSumBytes = kTileRows * 2;
  static constexpr int kHeaderBytes = 1024;                  // barriers, presence masks, flags
  static constexpr int kSharedBytes = 1024 + kHeaderBytes +  // 1,024 for alignment
                                      kStages * (kCodeBytes + kWideBytes + kScaleBytes) +
                                      kPackedStages * (kChunkBytes + kStrips * kBlockBytes) +
                                      kSumSlots * kSumBytes;
  static_assert(kSharedBytes <= 227 * 1024);
  static_assert(kWidenWarps >= kStrips / 2, "a warp has a pair of strips a step at most");
  static_assert(kStages <= kPackedStages, "an empty place says that the packed stage before has come");
  static_assert(
      (kStrips / 2 - 1 + kWidenWarps) / (kStrips / 2) <= kStages,
      "a widening warp moves on by a ring's length at most: parity tells a place from the one before");
};

// Two rings: what is copied as it lies in memory, and what the products read.
template <typename S>
struct WideShared {
  WeightRing packed;
  CodeRing codes;
  uint32_t wide;  // beside the codes
  uint32_t sums;  // ring of kSumSlots: S of a step's rows
  uint32_t last_flags;

  __device__ explicit WideShared(uint32_t at) {
    codes.codes = at;
    wide = at + S::kStages * S::kCodeBytes;
    packed.chunks = wide + S::kStages * S::kWideBytes;
    packed.residual = packed.chunks + S::kPackedStages * S::kChunkBytes;
    codes.scales = packed.residual + S::kPackedStages * kStrips * kBlockBytes;
    sums = codes.scales + S::kStages * S::kScaleBytes;
    codes.barriers.at = sums + S::kSumSlots * S::kSumBytes;
    packed.barriers.at = codes.barriers.at + Barriers::kBytes;
    packed.presence = packed.barriers.at + Barriers::kBytes;
    last_flags = packed.presence + 4 * 16;
  }
};

// A worker's segments. Tiles of 256 tokens are not shared, which needs fewer registers.
template <typename S>
class WideSegments {
 public:
  __device__ WideSegments(const WideParams& p, int worker)
      : schedule_(p.schedule), worker_(worker), cursor_(schedule_.start(worker)), tile_(worker) {}
  __device__ bool next(ZipperSegment& out) {
    if constexpr (S::kBlocks == 1) return schedule_.next(worker_, cursor_, out);
    if (tile_ >= schedule_.row_tiles * schedule_.token_tiles) return false;
    out = schedule_.segment(tile_, 0, schedule_.steps);
    tile_ += schedule_.workers;
    return true;
  }

 private:
  const ZipperSchedule& schedule_;
  int worker_;
  int64_t cursor_;
  int tile_;
};

// Does a step of zeros follow, of the up to kZeroSteps steps before that are the segment's?
__device__ __forceinline__ bool zeros_follow(int step, const ZipperSegment& segment) {
  return step % kZeroSteps == kZeroSteps - 1 || step + 1 == segment.last_step;
}

// One lane: codes and scales, or zeros. Each CTA fetches its share of the tokens for both.
template <typename S>
__device__ void copy_wide_activations(const WideParams& p, const CUtensorMap* codes, const CUtensorMap* zeros,
                                      const CodeRing& to, int worker, int rank) {
  ptx::prefetch_tensor_map(codes);
  ptx::prefetch_tensor_map(zeros);
  ptx::wait_for_previous_kernel();
  Ring<S::kStages> ring;
  ZipperSegment segment;
  constexpr int kShare = S::kTokens / S::kCluster;
  for (WideSegments<S> segments(p, worker); segments.next(segment);) {
    const int token = segment.token_tile * S::kTokens;
    // A tile of 256 tokens may reach past what the arrays hold, in multiples of 128 tokens.
    const uint32_t scale_bytes = 4 * min(S::kTokens, static_cast<int>(p.token_stride) - token);
    const auto copy = [&](const CUtensorMap* map, int column, uint32_t other_bytes) {
      const uint32_t full = to.barriers.full(ring.stage);
      ptx::barrier_wait(to.barriers.empty(ring.stage), ring.parity ^ 1);
      ptx::barrier_arrive_expect(full, S::kCodeBytes + other_bytes);
      ptx::tensor_copy_multicast(to.codes + ring.stage * S::kCodeBytes + rank * kShare * kStepColumns, map,
                                 column, token + rank * kShare, full, (1 << S::kCluster) - 1);
    };
    for (int step = segment.first_step; step < segment.last_step; ++step) {
      copy(codes, step * kStepColumns, scale_bytes);
      ptx::bulk_copy(to.scales + ring.stage * S::kScaleBytes, p.scale + step * p.token_stride + token,
                     scale_bytes, to.barriers.full(ring.stage));
      ring.advance();
      if (!zeros_follow(step, segment)) continue;
      copy(zeros, step / kZeroSteps * kStepColumns, 0);
      ring.advance();
    }
  }
}

// Half of a strip, 8 words of nibbles a lane, as bytes (16 * hi + lo) ^ flip where the tensor map would have
// written them. `rows`: where the lane stores its first.
__device__ __forceinline__ void store_flipped(const uint4& dense, const uint4* residual, uint32_t flip,
                                              uint32_t rows) {
  const uint32_t x[4] = {dense.x, dense.y, dense.z, dense.w};
  uint32_t a[8];
  if (residual != nullptr) {
    widen(dense, *residual, a);
#pragma unroll
    for (uint32_t& word : a) word ^= flip;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[2 * i] = (x[i] & 0xF0F0F0F0u) ^ flip;
      a[2 * i + 1] = (x[i] << 4 & 0xF0F0F0F0u) ^ flip;
    }
  }
  ptx::store_matrices(rows, a);
  ptx::store_matrices(rows ^ 32, a + 4);
}

// Two strips of a step as a B tile. `rows`: where the lane stores; `sums`: for the strips' S.
template <typename S>
__device__ __forceinline__ void widen_pair(const WideShared<S>& shared, int from, int pair, uint32_t rows,
                                           uint32_t sums, uint32_t flip, int lane) {
  const uint32_t presence = ptx::load_shared<uint32_t>(shared.packed.presence + 4 * from);
  const uint32_t chunk = shared.packed.chunks + from * S::kChunkBytes + 2 * pair * S::kStripBytes + lane * 16;
  // Blocks lie in the order of the strips that have one.
  uint32_t residual = shared.packed.residual + lane * 16 +
                      (from * kStrips + __popc(presence & ((1u << 2 * pair) - 1))) * kBlockBytes;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4 low = ptx::load_shared<uint4>(chunk + i * S::kStripBytes);
    const uint4 high = ptx::load_shared<uint4>(chunk + i * S::kStripBytes + kBlockBytes / 2);
    const uint32_t at = rows + i * (16 * kStepColumns);
    if (presence >> (2 * pair + i) & 1) {
      const uint4 low_rest = ptx::load_shared<uint4>(residual);
      const uint4 high_rest = ptx::load_shared<uint4>(residual + kBlockBytes / 2);
      residual += kBlockBytes;
      store_flipped(low, &low_rest, flip, at);
      store_flipped(high, &high_rest, flip, at ^ 64);
    } else {
      store_flipped(low, nullptr, flip, at);
      store_flipped(high, nullptr, flip, at ^ 64);
    }
  }
  // S lies after a strip's nibbles: 32 bytes each.
  if (lane < 4)
    ptx::store_shared(sums + lane * 16,
                      ptx::load_shared<uint4>(chunk + kBlockBytes + lane / 2 * (S::kStripBytes - 32)));
}

// Two strips of the B tile of a step of zeros: S of up to kZeroSteps steps, one a lane, in 64 bytes of FP16 a
// row, and in the next 64 what FP16 rounds off. `sums`: the lane's strips' S.
__device__ __forceinline__ void store_row_sums(uint32_t sums, bool active, uint32_t wide, int lane) {
  asm volatile("" : "+r"(lane));  // else addresses that only this needs are kept in registers all the time
#pragma unroll 1
  for (int i = 0; i < 2; ++i, sums += 32, wide += 16 * kStepColumns) {
    uint4 halves[2] = {};
    if (active) {
      halves[0] = ptx::load_shared<uint4>(sums);
      halves[1] = ptx::load_shared<uint4>(sums + 16);
    }
    const uint32_t words[8] = {halves[0].x, halves[0].y, halves[0].z, halves[0].w,
                               halves[1].x, halves[1].y, halves[1].z, halves[1].w};
#pragma unroll
    for (int row = 0; row < 16; ++row) {
      const int sum = static_cast<int16_t>(words[row / 2] >> row % 2 * 16);
      const __half upper = __int2half_rn(sum);
      const __half lower = __int2half_rn(sum - __half2int_rn(upper));
      const uint32_t at = wide + row * kStepColumns + lane % 8 * 2;
      ptx::store_shared(at + (lane / 8 ^ row % 8) * 16, upper);
      ptx::store_shared(at + (lane / 8 + 4 ^ row % 8) * 16, lower);
    }
  }
}

// A warp takes every kWidenWarps-th pair of strips. Codes c become c + 128 in even steps and 127 - c in odd
// ones, whose scales are negative: what that adds to the sums cancels on the way, before p.token takes the
// rest away.
template <typename S>
__device__ void widen_weights(const WideParams& p, const WideShared<S>& shared, int worker, int warp) {
  const int lane = threadIdx.x % 32;
  // A store takes 16 rows of two of the eight 16-byte columns of the swizzle; a lane names one of its rows.
  const uint32_t lane_rows = shared.wide + lane % 16 * kStepColumns + (lane / 16 ^ lane % 8) * 16;
  Ring<S::kPackedStages> from;
  Ring<S::kStages> to;
  int slot = 0;
  int pair = warp;         // of the step at hand, or beyond it
  const auto done = [&] {  // the pair is written
    ptx::fence_async_shared();
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(shared.codes.barriers.full(to.stage));
    pair += S::kWidenWarps;
  };
  const auto next = [&] {
    pair -= kStrips / 2;
    to.advance();
  };
  ZipperSegment segment;
  for (WideSegments<S> segments(p, worker); segments.next(segment);) {
    for (int step = segment.first_step; step < segment.last_step; ++step) {
      if (pair < kStrips / 2) {
        // In this order: a warp leaves steps out, and parity tells a phase only from its neighbours. A place
        // that is empty says that the packed stage's last step has come, so that the parity means this one.
        ptx::barrier_wait(shared.codes.barriers.empty(to.stage), to.parity ^ 1);
        ptx::barrier_wait(shared.packed.barriers.full(from.stage), from.parity);
        widen_pair<S>(
            shared, from.stage, pair, lane_rows + to.stage * S::kWideBytes + pair * (32 * kStepColumns),
            shared.sums + slot * S::kSumBytes + pair * 64, step % 2 == 0 ? 0x80808080u : 0x7F7F7F7Fu, lane);
        done();
        if (lane == 0) ptx::barrier_arrive(shared.packed.barriers.empty(from.stage));
      }
      next();
      from.advance();
      if (zeros_follow(step, segment)) {
        ptx::named_barrier_sync(3, 32 * S::kWidenWarps);  // the others' S
        if (pair < kStrips / 2) {
          ptx::barrier_wait(shared.codes.barriers.empty(to.stage), to.parity ^ 1);
          const int back = step % kZeroSteps - lane;  // the lane's step is so many steps before this one
          const int of = slot - back < 0 ? slot - back + S::kSumSlots : slot - back;
          store_row_sums(shared.sums + of * S::kSumBytes + pair * 64,
                         back >= 0 && step - back >= segment.first_step,
                         shared.wide + to.stage * S::kWideBytes + pair * (32 * kStepColumns), lane);
          done();
        }
        next();
      }
      slot = slot + 1 == S::kSumSlots ? 0 : slot + 1;
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

// Scale, bias and store of blocks of 64 tokens x 128 rows: the thread's tokens are `token`, token + 8, and
// the same of the next block 128 on. A row's scale and bias are loaded for all of them.
template <int kBlocks>
__device__ __forceinline__ void finish_wide(const WideParams& p, int row0, int token, int lane,
                                            float2 (&unit)[2 * kBlocks], float (&sums)[kBlocks][64]) {
  if (row0 >= p.rows) return;
  constexpr int kTokens =
      2 * kBlocks;  // of a thread; results 4 j + 2 (t % 2) + {0, 1} of block t / 2 are t's
  const auto token_of = [&](int t) { return token + t / 2 * 128 + t % 2 * 8; };
#pragma unroll
  for (float2& of : unit) of.x *= of.y;  // a power of two: (sum + x) y is one multiply-add
  const float* scales = p.row_scale + row0 + lane % 4 * 2;
  const float* biases = p.bias + row0 + lane % 4 * 2;
  const auto scale_rows = [&](int j, bool biased) {
    const float2 scale = __ldg(reinterpret_cast<const float2*>(scales + 8 * j));
    const float2 bias = biased ? __ldg(reinterpret_cast<const float2*>(biases + 8 * j)) : make_float2(0, 0);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float* two = sums[t / 2] + 4 * j + t % 2 * 2;
      two[0] = fmaf(fmaf(two[0], unit[t].y, unit[t].x), scale.x, bias.x);
      two[1] = fmaf(fmaf(two[1], unit[t].y, unit[t].x), scale.y, bias.y);
    }
  };
  if (p.bias != nullptr) {
#pragma unroll
    for (int j = 0; j < 16; ++j) scale_rows(j, true);
  } else {
#pragma unroll
    for (int j = 0; j < 16; ++j) scale_rows(j, false);
  }
  const bool whole_rows = row0 + kTileRows <= p.rows;
  if (!p.y_fp32 && whole_rows && p.y_stride % 8 == 0 && (reinterpret_cast<uintptr_t>(p.y) & 15) == 0) {
    auto* y = static_cast<__nv_bfloat16*>(p.y) + row0 + lane % 4 * 8;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      auto* to = y + token_of(t) * p.y_stride;
#pragma unroll
      for (int j = 0; j < 16; j += 4) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* two = sums[t / 2] + 4 * (j + i) + t % 2 * 2;
          const __nv_bfloat162 pair = __floats2bfloat162_rn(two[0], two[1]);
          v[i] = *reinterpret_cast<const uint32_t*>(&pair);
        }
        transpose_quad(v, lane);
        if (token_of(t) < p.tokens)
          *reinterpret_cast<uint4*>(to + 8 * j) = make_uint4(v[0], v[1], v[2], v[3]);
      }
    }
    return;
  }
  if (p.y_fp32 && whole_rows && p.y_stride % 2 == 0 && (reinterpret_cast<uintptr_t>(p.y) & 7) == 0) {
    auto* y = static_cast<float*>(p.y) + row0 + lane % 4 * 2;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (token_of(t) >= p.tokens) break;
#pragma unroll
      for (int j = 0; j < 16; ++j) {  // four lanes fill a sector
        const float* two = sums[t / 2] + 4 * j + t % 2 * 2;
        *reinterpret_cast<float2*>(y + token_of(t) * p.y_stride + 8 * j) = make_float2(two[0], two[1]);
      }
    }
    return;
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t)
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int row = row0 + i / 2 * 8 + lane % 4 * 2 + i % 2, at = token_of(t);
      if (row >= p.rows || at >= p.tokens) continue;
      const float result = sums[t / 2][i / 2 * 4 + t % 2 * 2 + i % 2];
      if (p.y_fp32)
        static_cast<float*>(p.y)[at * p.y_stride + row] = result;
      else
        static_cast<__nv_bfloat16*>(p.y)[at * p.y_stride + row] = __float2bfloat16(result);
    }
}

// sums += one step's products of 64 tokens x 128 rows. codes, wide: descriptors; scales: the address of the
// thread's first token's. read() is called when the operands have been.
template <typename Read>
__device__ __forceinline__ void multiply_block(uint32_t codes, uint32_t wide, uint32_t scales,
                                               float (&sums)[64], const Read& read) {
  int d[64];
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) ptx::wgmma(d, codes + 2 * k, wide + 2 * k, k > 0);
  ptx::wgmma_commit();
  // Under the products.
  const float scale0 = ptx::load_shared<float>(scales), scale1 = ptx::load_shared<float>(scales + 8 * 4);
  ptx::wgmma_wait<0>();
  read();
  // 0 <= d < 2^23: a denormal number, which multiply-adds take at full speed.
#pragma unroll
  for (int i = 0; i < 64; ++i) sums[i] = fmaf(i % 4 < 2 ? scale0 : scale1, __int_as_float(d[i]), sums[i]);
}

// sums -= zeros times S of up to kZeroSteps steps: both are pairs of FP16 numbers, whose lower ones' product
// is below what FP32 holds.
template <typename Read>
__device__ __forceinline__ void subtract_zeros(uint32_t zeros, uint32_t row_sums, float (&sums)[64],
                                               const Read& read) {
  float d[64];
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 6; ++k)
    ptx::wgmma(d, zeros + 2 * (k % 4), row_sums + (k < 4 ? 2 * (k % 2) : 2 * (k - 2)), k > 0);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  read();
#pragma unroll
  for (int i = 0; i < 64; ++i) sums[i] = fmaf(-0x1p-23f, d[i], sums[i]);
}

// What a math thread multiplies: descriptors, the address of its first token's scale in stage 0, and where it
// says that a stage is empty.
struct WideOperands {
  Barriers barriers;
  uint32_t codes, wide, scales, empty;
};

// A segment's steps for a warpgroup of which kBlocks blocks have tokens: the others are left out, and the
// other warpgroup has the tensor cores to itself.
template <typename S, int kBlocks>
__device__ __forceinline__ void multiply_segment(const WideOperands& of, const ZipperSegment& segment,
                                                 Ring<S::kStages>& ring, float (&sums)[S::kBlocks][64]) {
  constexpr uint32_t kNext = 128 * kStepColumns / 16;  // a warpgroup's next block, in descriptors
  uint32_t ready = 0;  // is the next stage full? Asked before a drain, known after it
  // multiply(block, codes, wide, scales, read): one step of a block.
  const auto step_of = [&](const auto& multiply) {
    const int stage = ring.stage;
    ptx::barrier_wait_unless(ready, of.barriers.full(stage), ring.parity);
    ring.advance();
    const uint32_t codes = of.codes + stage * (S::kCodeBytes / 16);
    const uint32_t wide = of.wide + stage * (S::kWideBytes / 16);
    const uint32_t scales = of.scales + stage * S::kScaleBytes;
    if constexpr (kBlocks == 0) release<S>(of.empty, stage);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      multiply(sums[b], codes + b * kNext, wide, scales + b * 128 * 4, [&] {
        if (b < kBlocks - 1) return;
        release<S>(of.empty, stage);
        ready = ptx::barrier_test(of.barriers.full(ring.stage), ring.parity);
      });
  };
  for (int step = segment.first_step; step < segment.last_step;) {
    const int end = min((step / kZeroSteps + 1) * kZeroSteps, segment.last_step);
#pragma unroll 1
    for (; step < end; ++step)
      step_of([](auto& block, uint32_t codes, uint32_t wide, uint32_t scales, const auto& read) {
        multiply_block(codes, wide, scales, block, read);
      });
    step_of([](auto& block, uint32_t codes, uint32_t wide, uint32_t, const auto& read) {
      subtract_zeros(codes, wide, block, read);
    });
  }
}

template <typename S>
__device__ void multiply_wide(const WideParams& p, const WideShared<S>& shared, int worker, int rank) {
  // Through a shuffle the compiler knows them to be uniform, and keeps addresses out of vector registers.
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
  const int lane = threadIdx.x % 32;
  const int mine = group * 64 + warp * 16 + lane / 4;  // the thread also has token + 8
  const WideOperands operands{shared.codes.barriers,
                              ptx::wgmma_descriptor(shared.codes.codes + group * 64 * kStepColumns),
                              ptx::wgmma_descriptor(shared.wide), shared.codes.scales + mine * 4,
                              empty_barriers<S>(shared.codes.barriers, lane)};
  Ring<S::kStages> ring;
  ZipperSegment segment;
  ptx::wait_for_previous_kernel();  // p.token is its
  float sums[S::kBlocks][S::kResults];
  for (WideSegments<S> segments(p, worker); segments.next(segment);) {
    const int row0 = (segment.row_tile * S::kCluster + rank) * kTileRows;
    // The end reads scales and biases in a chain: let them lie in L1 by then.
    if (lane < 4 && row0 < p.rows) {
      ptx::prefetch_l1(p.row_scale + row0 + lane * 32);
      if (p.bias != nullptr) ptx::prefetch_l1(p.bias + row0 + lane * 32);
    }
    const int token = segment.token_tile * S::kTokens + mine;
    float2 unit[2 * S::kBlocks];
#pragma unroll
    for (int t = 0; t < 2 * S::kBlocks; ++t)
      unit[t] = p.token[min(token + t / 2 * 128 + t % 2 * 8, p.tokens - 1)];
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < S::kResults; ++i) sums[b][i] = 0;
    const int first_token = segment.token_tile * S::kTokens + group * 64;
    if (first_token + 128 * (S::kBlocks - 1) < p.tokens)
      multiply_segment<S, S::kBlocks>(operands, segment, ring, sums);
    else if (S::kBlocks == 2 && first_token < p.tokens)
      multiply_segment<S, 1>(operands, segment, ring, sums);
    else
      multiply_segment<S, 0>(operands, segment, ring, sums);
    if constexpr (S::kBlocks == 1) {
      const bool whole = segment.first_step == 0 && segment.last_step == p.schedule.steps;
      if (!whole &&
          !combine<S>(p, shared.last_flags, segment, worker, rank, group, threadIdx.x % 128, sums[0]))
        continue;
    }
    finish_wide<S::kBlocks>(p, row0, token, lane, unit, sums);
  }
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    wide_kernel(const __grid_constant__ CUtensorMap codes, const __grid_constant__ CUtensorMap zeros,
                const __grid_constant__ WideParams p) {
  extern __shared__ uint8_t raw[];
  // Each role finds out anew where it is: what all share would be kept in registers that some do not have.
  const auto shared_memory = [] { return WideShared<S>(ptx::shared_base(raw, 1024)); };
  const auto worker = [] { return static_cast<int>(blockIdx.x / S::kCluster); };
  const auto rank = [] { return static_cast<int>(ptx::cluster_rank()); };
  if (threadIdx.x == 0) {
    const WideShared<S> shared = shared_memory();
    for (int i = 0; i < S::kPackedStages; ++i) {
      ptx::barrier_init(shared.packed.barriers.full(i), 1);
      ptx::barrier_init(shared.packed.barriers.empty(i), kStrips / 2);
    }
    for (int i = 0; i < S::kStages; ++i) {
      ptx::barrier_init(shared.codes.barriers.full(i),
                        1 + kStrips / 2);  // the copies, and the pairs of strips
      ptx::barrier_init(shared.codes.barriers.empty(i), S::kCluster * S::kMathThreads / 32);
    }
    ptx::fence_barrier_init();
  }
  ptx::cluster_sync();
  ptx::allow_next_kernel();
  if (threadIdx.x >= S::kMathThreads) {
    ptx::registers_decrease<S::kOtherRegisters>();
    const WideShared<S> shared = shared_memory();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0) - S::kMathThreads / 32;
    if (warp < S::kWidenWarps) widen_weights<S>(p, shared, worker(), warp);
    if (warp == S::kWidenWarps)
      copy_weights<S, S::kPackedStages>(p, shared.packed, worker(), rank(), threadIdx.x % 32);
    if (warp == S::kWidenWarps + 1 && threadIdx.x % 32 == 0)
      copy_wide_activations<S>(p, &codes, &zeros, shared.codes, worker(), rank());
  } else {
    ptx::registers_increase<S::kMathRegisters>();
    multiply_wide<S>(p, shared_memory(), worker(), rank());
  }
  // No CTA may leave while another of its cluster still arrives on its barriers.
  __syncwarp();
  ptx::cluster_sync();
}

}  // namespace quatrain::ops::zipper
