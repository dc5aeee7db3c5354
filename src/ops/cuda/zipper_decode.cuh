// The zipper product for up to 16 tokens, where reading the weights is all that counts (docs/zipper.md).
//
// One CTA an SM, 16 warps: a CTA computes a few strips of 16 rows over all columns, so that no sum leaves the
// SM. Each warp streams its share of a strip's steps, every slices-th, through a ring of its own in shared
// memory, filled by bulk copies that it issues itself. Activations come in pieces of kPieceSteps steps,
// shared by the warps.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "ops/cuda/ptx/bulk_copy.cuh"
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
  int group_shift, activation_groups;  // group of column k: min(k >> group_shift, activation_groups - 1)
  int rows, tokens, steps;
  int strips;      // ceil(rows / 16)
  int cta_strips;  // strips of a CTA at a time
  int slices;      // warps of a strip: cta_strips * slices <= 16
  int pieces;      // slots of the activation ring
  void* y;         // FP32 or BF16
  bool y_fp32;
  int64_t y_stride;
};

inline constexpr int kDecodeWarps = 16;
inline constexpr int kPieceSteps = 16;  // steps of activations that come together
inline constexpr int kPieceColumns = kPieceSteps * kStepColumns;
inline constexpr int kPiecePitch = kPieceColumns + 16;  // 8 tokens then lie in different banks
inline constexpr int kMaxPieces = 8;
inline constexpr int kAheadSteps = 8;  // of a warp, brought into L2 early: 17 MB of a large matrix

template <int kTokens, int kDrain, bool kGroupScales>
struct DecodeShape {
  static constexpr int kDrains = kStepColumns / kDrain;
  static constexpr int kStripBytes = strip_bytes(kDrain, kGroupScales);
  static constexpr int kSlots = kTokens == 8 ? 5 : 4;  // of a warp's ring: what shared memory has room for
  static constexpr int kCopyBytes = kBlockBytes + (kGroupScales ? kDrains * 32 : 0);  // nibbles and scales
  static constexpr int kSlotBytes = kCopyBytes + kBlockBytes;                         // and a residual block
  static constexpr int kRingBytes = kDecodeWarps * kSlots * kSlotBytes;
  static constexpr int kPieceBytes = kTokens * kPiecePitch;
  static constexpr int kHeaderBytes = 8 * (kDecodeWarps * kSlots + 2 * kMaxPieces);
  static constexpr int kSumBytes = kDecodeWarps * 16 * kTokens * 4;

  static constexpr int shared_bytes(int pieces, int groups) {
    return kHeaderBytes + kRingBytes + pieces * kPieceBytes + groups * kTokens * 8 + kSumBytes;
  }
};

template <int kTokenBlocks, int kDrain, bool kGroupScales>
__global__ void __launch_bounds__(kDecodeWarps * 32, 1)
    decode_kernel(const __grid_constant__ DecodeParams p) {
  constexpr int kTokens = 8 * kTokenBlocks;
  using S = DecodeShape<kTokens, kDrain, kGroupScales>;
  constexpr int kSlots = S::kSlots;
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t base = ptx::shared_base(shared, 128);
  const uint32_t piece_full = base + 8 * kDecodeWarps * kSlots, piece_empty = piece_full + 8 * kMaxPieces;
  const uint32_t pieces = base + S::kHeaderBytes + S::kRingBytes;
  auto* scales = reinterpret_cast<float*>(shared + S::kHeaderBytes + S::kRingBytes +
                                          p.pieces * S::kPieceBytes);  // [groups][kTokens]
  auto* zeros = reinterpret_cast<int*>(scales + p.activation_groups * kTokens);
  auto* partial =
      reinterpret_cast<float*>(zeros + p.activation_groups * kTokens);  // [warps][kTokens][16 rows]

  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int slice = warp % p.slices;
  const int piece_count = (p.steps + kPieceSteps - 1) / kPieceSteps;
  const int rounds = (p.strips + gridDim.x * p.cta_strips - 1) / (gridDim.x * p.cta_strips);
  const uint32_t full = base + 8 * warp * kSlots;
  const uint32_t ring = base + S::kHeaderBytes + warp * kSlots * S::kSlotBytes;
  if (lane == 0)
    for (int i = 0; i < kSlots; ++i) ptx::barrier_init(full + 8 * i, 1);
  if (threadIdx.x == 0)
    for (int i = 0; i < kMaxPieces; ++i) {
      ptx::barrier_init(piece_full + 8 * i, 1);
      ptx::barrier_init(piece_empty + 8 * i, kDecodeWarps);
    }
  ptx::fence_barrier_init();
  __syncwarp();
  ptx::allow_next_kernel();

  // The stream of a warp: its share of the steps of one strip a round.
  const int share = warp < p.cta_strips * p.slices ? (p.steps - slice + p.slices - 1) / p.slices : 0;
  const auto strip_of = [&](int round) {
    return share == 0 || round >= rounds ? p.strips
                                         : (round * gridDim.x + blockIdx.x) * p.cta_strips + warp / p.slices;
  };

  // The copying end, kSlots steps ahead of the computing end.
  int ahead_round = 0, ahead = 0, ahead_slot = 0, ahead_strip = strip_of(0);
  const uint8_t* ahead_data = nullptr;
  uint32_t entries = 0;  // lane i: the table's entry of the i-th of 32 steps
  uint32_t present = 0;  // bit i: slot i has a residual block
  const auto copy_next = [&] {
    if (ahead_strip >= p.strips) return;
    const int position = ahead_strip % kStrips;
    if (ahead % 32 == 0) {
      const int64_t first = static_cast<int64_t>(ahead_strip / kStrips) * p.steps + slice;
      if (ahead == 0) ahead_data = p.chunks + (first * kStrips + position) * S::kStripBytes;
      if (ahead + lane < share) entries = __ldg(p.blocks + first + (ahead + lane) * p.slices);
    }
    const uint32_t entry = __shfl_sync(~0u, entries, ahead % 32);
    const uint32_t here = entry >> position & 1;
    present = (present & ~(1u << ahead_slot)) | here << ahead_slot;
    if (lane == 0) {
      const uint32_t to = ring + ahead_slot * S::kSlotBytes;
      ptx::barrier_arrive_expect(full + 8 * ahead_slot, S::kCopyBytes + here * kBlockBytes);
      ptx::bulk_copy_stream(to, ahead_data, S::kCopyBytes, full + 8 * ahead_slot);
      if (here) {
        const int64_t block = (entry >> 8) + __popc(entry & ((1u << position) - 1));
        ptx::bulk_copy_stream(to + S::kCopyBytes, p.residual + block * kBlockBytes, kBlockBytes,
                              full + 8 * ahead_slot);
      }
    }
    ahead_data += p.slices * kStrips * S::kStripBytes;
    if (++ahead_slot == kSlots) ahead_slot = 0;
    if (++ahead == share) {
      ahead = 0;
      ahead_strip = strip_of(++ahead_round);
    }
  };
  for (int i = 0; i < kSlots; ++i) copy_next();
  // While the kernels before this one still run, memory would be idle: what comes next waits in L2.
  if (lane < kAheadSteps && ahead > 0 && ahead + lane < share && ahead_strip < p.strips)
    ptx::bulk_prefetch(ahead_data + lane * p.slices * kStrips * S::kStripBytes, S::kCopyBytes);
  __syncthreads();

  // The weights above do not depend on earlier kernels; the activations do. Warp 0 also feeds their ring.
  ptx::wait_for_previous_kernel();
  int next_piece = 0;
  const auto feed = [&](int up_to) {
    for (; next_piece < min(up_to, piece_count * rounds); ++next_piece) {
      const int slot = next_piece % p.pieces;
      if (next_piece >= p.pieces) ptx::barrier_wait(piece_empty + 8 * slot, (next_piece / p.pieces - 1) & 1);
      const int column = next_piece % piece_count * kPieceColumns;
      const int bytes = min(kPieceColumns, p.steps * kStepColumns - column);
      if (lane == 0) ptx::barrier_arrive_expect(piece_full + 8 * slot, bytes * p.tokens);
      __syncwarp();
      for (int token = lane; token < p.tokens; token += 32)
        ptx::bulk_copy(pieces + slot * S::kPieceBytes + token * kPiecePitch,
                       p.codes + token * p.code_stride + column, bytes, piece_full + 8 * slot);
    }
  };
  if (warp == 0) feed(p.pieces);
  bool any_zero = false;
  for (int i = threadIdx.x; i < p.activation_groups * kTokens; i += kDecodeWarps * 32) {
    const int64_t at = i / kTokens * p.token_stride + i % kTokens;
    const bool used = i % kTokens < p.tokens;
    scales[i] = used ? p.scale[at] : 0.0f;
    zeros[i] = used ? p.zero[at] : 0;
    any_zero |= zeros[i] != 0;
  }
  const bool shifted = __syncthreads_or(any_zero);

  int slot = 0, piece = 0;
  uint32_t parity = 0;
  for (int round = 0; round < rounds; ++round) {
    float sums[kTokenBlocks][4] = {};
    // kSteps steps at once, `slices` apart, for their independent chains of instructions.
    const auto multiply = [&]<int kSteps>(std::integral_constant<int, kSteps>, int step, uint32_t codes) {
      uint32_t a[kSteps][16];
      float scale0[kSteps][S::kDrains], scale1[kSteps][S::kDrains];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        ptx::barrier_wait(full + 8 * slot, parity);
        const uint32_t data = ring + slot * S::kSlotBytes, dense = data + lane * 16;
        const uint4 low = ptx::load_shared<uint4>(dense),
                    high = ptx::load_shared<uint4>(dense + kBlockBytes / 2);
        if (present >> slot & 1) {
          const uint32_t residual = dense + S::kCopyBytes;
          widen(low, ptx::load_shared<uint4>(residual), a[i]);
          widen(high, ptx::load_shared<uint4>(residual + kBlockBytes / 2), a[i] + 8);
        } else {
          widen(low, a[i]);
          widen(high, a[i] + 8);
        }
        if constexpr (kGroupScales) {
          const uint32_t weight_scales = data + kBlockBytes + lane / 4 * 2;
#pragma unroll
          for (int k = 0; k < S::kDrains; ++k) {
            scale0[i][k] = __half2float(ptx::load_shared<__half>(weight_scales + k * 32));
            scale1[i][k] = __half2float(ptx::load_shared<__half>(weight_scales + k * 32 + 16));
          }
        }
        if (++slot == kSlots) {
          slot = 0;
          parity ^= 1;
        }
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kSteps; ++i) copy_next();
#pragma unroll
      for (int k = 0; k < S::kDrains; ++k) {
        int d[kSteps][kTokenBlocks][4] = {};
        const auto group_of = [&](int i) {
          // Columns past the edge have zero codes and weights: any group will do there.
          return min(((step + i * p.slices) * kStepColumns + k * kDrain) >> p.group_shift,
                     p.activation_groups - 1);
        };
        if (shifted) {
#pragma unroll
          for (int i = 0; i < kSteps; ++i) {
            int code_sums[4] = {0, 0, 0, 0};  // S is the product with ones
#pragma unroll
            for (int m = 0; m < kDrain / 32; ++m)
              ptx::mma(code_sums, a[i] + k * (kDrain / 8) + 4 * m, 0x01010101u, 0x01010101u);
#pragma unroll
            for (int n = 0; n < kTokenBlocks; ++n) {
              const int2 z =
                  *reinterpret_cast<const int2*>(zeros + group_of(i) * kTokens + n * 8 + lane % 4 * 2);
              d[i][n][0] = -z.x * code_sums[0];
              d[i][n][1] = -z.y * code_sums[1];
              d[i][n][2] = -z.x * code_sums[2];
              d[i][n][3] = -z.y * code_sums[3];
            }
          }
        }
#pragma unroll
        for (int m = 0; m < kDrain / 32; ++m)
#pragma unroll
          for (int i = 0; i < kSteps; ++i)
#pragma unroll
            for (int n = 0; n < kTokenBlocks; ++n) {
              const uint32_t from =
                  codes + i * p.slices * kStepColumns + n * 8 * kPiecePitch + k * kDrain + 32 * m;
              ptx::mma(d[i][n], a[i] + k * (kDrain / 8) + 4 * m, ptx::load_shared<uint32_t>(from),
                       ptx::load_shared<uint32_t>(from + 16));
            }
#pragma unroll
        for (int i = 0; i < kSteps; ++i)
#pragma unroll
          for (int n = 0; n < kTokenBlocks; ++n) {
            const float2 s =
                *reinterpret_cast<const float2*>(scales + group_of(i) * kTokens + n * 8 + lane % 4 * 2);
            const float w0 = kGroupScales ? scale0[i][k] : 1.0f, w1 = kGroupScales ? scale1[i][k] : 1.0f;
            sums[n][0] = fmaf(s.x * w0, __int2float_rn(d[i][n][0]), sums[n][0]);
            sums[n][1] = fmaf(s.y * w0, __int2float_rn(d[i][n][1]), sums[n][1]);
            sums[n][2] = fmaf(s.x * w1, __int2float_rn(d[i][n][2]), sums[n][2]);
            sums[n][3] = fmaf(s.y * w1, __int2float_rn(d[i][n][3]), sums[n][3]);
          }
      }
    };
    const int last_step = strip_of(round) < p.strips ? p.steps : 0;
    int step = slice;
    for (int of = 0; of < piece_count; ++of, ++piece) {
      const int piece_slot = piece % p.pieces, end = min(last_step, (of + 1) * kPieceSteps);
      ptx::barrier_wait(piece_full + 8 * piece_slot, piece / p.pieces & 1);
      const uint32_t codes = pieces + piece_slot * S::kPieceBytes + lane / 4 * kPiecePitch + lane % 4 * 4;
      const auto at = [&] { return codes + (step - of * kPieceSteps) * kStepColumns; };
      for (; step + p.slices < end; step += 2 * p.slices)
        multiply(std::integral_constant<int, 2>{}, step, at());
      if (step < end) {
        multiply(std::integral_constant<int, 1>{}, step, at());
        step += p.slices;
      }
      __syncwarp();
      if (lane == 0) ptx::barrier_arrive(piece_empty + 8 * piece_slot);
      if (warp == 0) feed(piece + 1 + p.pieces);
    }

    // The slices of a strip add up in order.
    float* own = partial + warp * 16 * kTokens;
#pragma unroll
    for (int n = 0; n < kTokenBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        own[(n * 8 + lane % 4 * 2 + i % 2) * 16 + lane / 4 + i / 2 * 8] = sums[n][i];
    __syncthreads();
    for (int i = threadIdx.x; i < p.cta_strips * 16 * p.tokens; i += kDecodeWarps * 32) {
      const int local = i / (16 * p.tokens), within = i % (16 * p.tokens);
      const int row = ((round * gridDim.x + blockIdx.x) * p.cta_strips + local) * 16 + within % 16;
      if (row >= p.rows) continue;
      float sum = 0;
      for (int s = 0; s < p.slices; ++s) sum += partial[(local * p.slices + s) * 16 * kTokens + within];
      const float result = fmaf(sum, p.row_scale[row], p.bias != nullptr ? p.bias[row] : 0.0f);
      const int64_t to = within / 16 * p.y_stride + row;
      if (p.y_fp32)
        static_cast<float*>(p.y)[to] = result;
      else
        static_cast<__nv_bfloat16*>(p.y)[to] = __float2bfloat16(result);
    }
    __syncthreads();
  }
}

}  // namespace quatrain::ops::zipper
