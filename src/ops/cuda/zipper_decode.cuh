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
#include "ops/cuda/row_codes.cuh"
#include "ops/cuda/zipper_params.h"
#include "ops/cuda/zipper_widen.cuh"

namespace quatrain::ops::zipper {

// Rows that the product norms and quantises itself.
struct DecodeRows {
  const float* x;  // or null: the product reads codes
  RowParams row;
};

// Codes of gate * up instead of results: a matrix of `strips` strips of gates above as many of ups.
struct DecodeGate {
  int strips;  // or 0
  RowParams row;
  int8_t* codes;
  float* scale;
  int32_t* zero;
  int64_t code_stride, token_stride;
};

struct DecodeParams : Operands {
  const int8_t* codes;
  int64_t code_stride;
  int group_shift;  // group of column k: min(k >> group_shift, activation_groups - 1)
  int steps;
  int strips;      // ceil(rows / 16)
  int cta_strips;  // strips of a CTA at a time
  int slices;      // warps of a strip: cta_strips * slices <= 16
  int pieces;      // slots of the activation ring
  DecodeRows normed;
  DecodeGate gate;
};

inline constexpr int kDecodeWarps = 16;
inline constexpr int kDecodeThreads = kDecodeWarps * 32;
inline constexpr int kCompanyThreads = 128;  // of an attention CTA, for which registers are left on the SM
inline constexpr int kGateStrips = 8;        // of a CTA: 128 columns, which hold whole groups and transforms
inline constexpr int kPieceSteps = 16;       // steps of activations that come together
inline constexpr int kPieceColumns = kPieceSteps * kStepColumns;
inline constexpr int kPiecePitch = kPieceColumns + 16;  // 8 tokens then lie in different banks
inline constexpr int kMaxPieces = 8;

template <int kTokens, int kDrain, bool kGroupScales>
struct DecodeShape {
  static constexpr int kDrains = kStepColumns / kDrain;
  static constexpr int kStripBytes = strip_bytes(kDrain, kGroupScales);
  static constexpr int kSlots = kTokens == 8 ? 5 : 4;  // of a warp's ring: what shared memory has room for
  static constexpr int kCopyBytes = kBlockBytes + (kGroupScales ? kDrains * 32 : 0);  // nibbles and scales
  static constexpr int kSlotBytes = kCopyBytes + kBlockBytes;                         // and a residual block
  static constexpr int kRingBytes = kDecodeWarps * kSlots * kSlotBytes;
  static constexpr int kHeaderBytes = 8 * (kDecodeWarps * kSlots + 2 * kMaxPieces);
  static constexpr int kSumBytes = kDecodeWarps * 16 * (kTokens + 1) * 4;  // and the rows' scales

  static constexpr int shared_bytes(int pieces, int tokens, int groups) {
    return kHeaderBytes + kRingBytes + pieces * tokens * kPiecePitch + groups * kTokens * 8 + kSumBytes;
  }
};

// The rows' codes into the pieces, their scales and zeros into [groups][kTokens], by every CTA for itself;
// whether a zero is not 0. `reduced`: kRowStretches floats; `meanwhile()` runs while the first row is on its
// way.
template <int kTokens, typename Meanwhile>
__device__ bool norm_rows(const DecodeParams& p, uint32_t pieces, float* scales, int* zeros, float* reduced,
                          const Meanwhile& meanwhile) {
  RowParams row = p.normed.row;
  if (blockIdx.x > 0) row.sum = nullptr, row.bad = nullptr;
  bool any_zero = false;
  for (int token = 0; token < p.tokens; ++token) {
    const auto store = [&](int column, const StoredGroup& group, bool opens, uint2 codes) {
      if (opens) {
        const int at = (column >> row.group_shift) * kTokens + token;
        scales[at] = group.scale;
        zeros[at] = group.zero;
        any_zero |= group.zero != 0;
      }
      const int slot = column / kPieceColumns;
      ptx::store_shared(pieces + (slot * p.tokens + token) * kPiecePitch + (column - slot * kPieceColumns),
                        codes);
    };
    const auto between = [&] {
      if (token == 0) meanwhile();
    };
    if (row.width <= kDecodeThreads * kRowVector)
      row_codes<float, RowSource::RmsNorm, 1, true>(p.normed.x, row, token, 0, nullptr, reduced, store,
                                                    between);
    else
      row_codes<float, RowSource::RmsNorm, 2, true>(p.normed.x, row, token, 0, nullptr, reduced, store,
                                                    between);
  }
  return any_zero;
}

// Of the CTA's 8 strips of gates and 8 of ups, whose sums lie in `partial` [16 strips][kTokens][16 rows],
// their scales in `row_scales` [16 strips][16 rows], the codes of 128 columns; a warp a token.
template <int kTokens>
__device__ void gate_codes(const DecodeParams& p, const float* partial, const float* row_scales, int part) {
  const int token = threadIdx.x / 32, lane = threadIdx.x % 32;
  const RowParams& row = p.gate.row;
  const int column = part * kStepColumns + 4 * lane;
  if (token >= p.tokens || column >= row.width) return;
  const float* gates = partial + (lane / 4 * kTokens + token) * 16 + lane % 4 * 4;
  const float* ups = gates + kGateStrips * kTokens * 16;
  const float* gate_scales = row_scales + 4 * lane;
  const float* up_scales = gate_scales + kGateStrips * 16;
  const auto result = [&](float sum, float scale, int at) {
    return fmaf(sum, scale, p.bias != nullptr ? p.bias[at] : 0.0f);
  };
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[i] = gate_value(result(gates[i], gate_scales[i], column + i),
                      result(ups[i], up_scales[i], row.width + column + i), row.gelu);
    if (row.gain != nullptr) x[i] = __fmul_rn(x[i], row.gain[column + i]);
  }
  quad_codes(x, row, token, column, true, [&](const StoredGroup& group, uint32_t codes) {
    if (row.opens(column)) {
      const int64_t at = (column >> row.group_shift) * p.gate.token_stride + token;
      p.gate.scale[at] = group.scale;
      p.gate.zero[at] = group.zero;
    }
    *reinterpret_cast<uint32_t*>(p.gate.codes + token * p.gate.code_stride + column) = codes;
  });
}

template <int kTokenBlocks, int kDrain, bool kGroupScales>
__global__ void __launch_bounds__(kDecodeThreads + kCompanyThreads, 1)
    decode_kernel(const __grid_constant__ DecodeParams p) {
  constexpr int kTokens = 8 * kTokenBlocks;
  using S = DecodeShape<kTokens, kDrain, kGroupScales>;
  constexpr int kSlots = S::kSlots;
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t base = ptx::shared_base(shared, 128);
  const uint32_t piece_full = base + 8 * kDecodeWarps * kSlots, piece_empty = piece_full + 8 * kMaxPieces;
  const uint32_t pieces = base + S::kHeaderBytes + S::kRingBytes;
  const int piece_bytes = p.tokens * kPiecePitch;
  auto* scales = reinterpret_cast<float*>(shared + S::kHeaderBytes + S::kRingBytes +
                                          p.pieces * piece_bytes);  // [groups][kTokens]
  auto* zeros = reinterpret_cast<int*>(scales + p.activation_groups * kTokens);
  auto* partial =
      reinterpret_cast<float*>(zeros + p.activation_groups * kTokens);  // [warps][kTokens][16 rows]
  float* row_scales = partial + kDecodeWarps * kTokens * 16;            // [strips of the CTA][16 rows]

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
      ptx::barrier_init(piece_empty + 8 * i, kDecodeThreads);
    }
  ptx::fence_barrier_init();
  __syncwarp();
  ptx::allow_next_kernel();

  // The stream of a warp: its share of the steps of one strip a round. Of gates and ups, a CTA's are of the
  // same columns: eight strips each.
  const int share = warp < p.cta_strips * p.slices ? (p.steps - slice + p.slices - 1) / p.slices : 0;
  const auto strip_at = [&](int round, int local) {  // strip `local` of the CTA
    const int part = round * gridDim.x + blockIdx.x;
    if (p.gate.strips == 0) return part * p.cta_strips + local;
    const int within = part * kGateStrips + local % kGateStrips;
    return within < p.gate.strips ? local / kGateStrips * p.gate.strips + within : p.strips;
  };
  const auto strip_of = [&](int round) {
    return share == 0 || round >= rounds ? p.strips : strip_at(round, warp / p.slices);
  };
  // Rows' scales are on their way all round.
  float row_scale = 0;
  const auto load_row_scales = [&](int round) {
    const int local = threadIdx.x / 16, strip = local < p.cta_strips ? strip_at(round, local) : p.strips;
    if (strip < p.strips) row_scale = __ldg(p.row_scale + strip * 16 + threadIdx.x % 16);
  };
  load_row_scales(0);

  // What the warp reads, strip after strip: each item a step of a strip. A lane knows where every 32nd item
  // lies, and is the one that copies it: found for all at once, addresses cost next to nothing between
  // products.
  int rounds_here = 0;
  while (strip_of(rounds_here) < p.strips) ++rounds_here;
  const unsigned items = share * rounds_here;
  const uint8_t *dense = nullptr, *residual = nullptr;  // of the lane's item of the present 32, or null
  uint32_t entry = 0;                                   // the table's, of its item of the next 32
  uint32_t present = 0,
           present_before = 0;  // which of the present 32 and the 32 before have a residual block
  const auto place_of = [&](unsigned item, int& position) {
    const int round = item / static_cast<unsigned>(share), step = item % static_cast<unsigned>(share);
    const int strip = strip_of(round);
    position = strip % kStrips;
    return static_cast<int64_t>(strip / kStrips) * p.steps + slice + step * p.slices;
  };
  const auto look_up = [&](unsigned item) {
    int position;
    entry = item < items ? __ldg(p.blocks + place_of(item, position)) : 0;
  };
  const auto find_dense = [&](unsigned item) {
    int position;
    if (item < items) {
      const int64_t place = place_of(item, position);
      dense = p.chunks + (place * kStrips + position) * S::kStripBytes;
    }
  };
  const auto find_residual = [&](unsigned item) {
    int position = 0;
    if (item < items) place_of(item, position);
    const bool here = entry >> position & 1;
    const int64_t block = (entry >> 8) + __popc(entry & ((1u << position) - 1));
    residual = here ? p.residual + block * kBlockBytes : nullptr;
    present_before = present;
    present = __ballot_sync(~0u, here);
  };
  const auto copy_residual = [&](int slot) {
    if (residual != nullptr)
      ptx::bulk_copy_stream(ring + slot * S::kSlotBytes + S::kCopyBytes, residual, kBlockBytes,
                            full + 8 * slot);
  };
  // What needs no look into the table goes first.
  const bool first = lane < kSlots && lane < items;
  look_up(lane);
  find_dense(lane);
  if (first) {
    ptx::barrier_expect(full + 8 * lane, S::kCopyBytes);
    ptx::bulk_copy_stream(ring + lane * S::kSlotBytes, dense, S::kCopyBytes, full + 8 * lane);
  }
  // The residual's turn comes once the table has been read, which the activations must not wait for.
  const auto copy_first_residual = [&] {
    find_residual(lane);
    if (first) {
      ptx::barrier_arrive_expect(full + 8 * lane, residual != nullptr ? kBlockBytes : 0);
      copy_residual(lane);
    }
    look_up(32 + lane);
  };
  unsigned copied = kSlots, present_batch = 0;
  const auto copy_next = [&](int slot) {
    if (copied < items) {
      if (copied % 32 == 0) {
        present_batch = copied / 32;
        find_dense(copied + lane);
        find_residual(copied + lane);
        look_up(copied + 32 + lane);
      }
      if (lane == copied % 32) {
        ptx::barrier_arrive_expect(full + 8 * slot, S::kCopyBytes + (residual != nullptr ? kBlockBytes : 0));
        ptx::bulk_copy_stream(ring + slot * S::kSlotBytes, dense, S::kCopyBytes, full + 8 * slot);
        copy_residual(slot);
      }
    }
    ++copied;
  };
  if (p.normed.x != nullptr) prefetch_gain(p.normed.row, 0, p.normed.row.width);
  __syncthreads();

  // The weights above do not depend on earlier kernels; the activations do. Codes come in pieces; warp 0 also
  // feeds their ring.
  ptx::wait_for_previous_kernel();
  const int fed_pieces = p.normed.x != nullptr ? 0 : piece_count * rounds;
  int next_piece = 0;
  const auto feed = [&](int up_to) {
    for (; next_piece < min(up_to, fed_pieces); ++next_piece) {
      const int slot = next_piece % p.pieces;
      if (next_piece >= p.pieces) ptx::barrier_wait(piece_empty + 8 * slot, (next_piece / p.pieces - 1) & 1);
      const int column = next_piece % piece_count * kPieceColumns;
      const int bytes = min(kPieceColumns, p.steps * kStepColumns - column);
      if (lane == 0) ptx::barrier_arrive_expect(piece_full + 8 * slot, bytes * p.tokens);
      __syncwarp();
      for (int token = lane; token < p.tokens; token += 32)
        ptx::bulk_copy(pieces + slot * piece_bytes + token * kPiecePitch,
                       p.codes + token * p.code_stride + column, bytes, piece_full + 8 * slot);
    }
  };
  if (warp == 0) feed(p.pieces);
  bool any_zero = false;
  if (kTokenBlocks == 1 && p.normed.x != nullptr) {
    any_zero = norm_rows<kTokens>(p, pieces, scales, zeros, partial, copy_first_residual);
  } else {
    copy_first_residual();
    for (int i = threadIdx.x; i < p.activation_groups * kTokens; i += kDecodeThreads) {
      const int64_t at = i / kTokens * p.token_stride + i % kTokens;
      const bool used = i % kTokens < p.tokens;
      scales[i] = used ? p.scale[at] : 0.0f;
      zeros[i] = used ? p.zero[at] : 0;
      any_zero |= zeros[i] != 0;
    }
  }
  const bool shifted = __syncthreads_or(any_zero);

  // A lane's tokens lane / 4, lane / 4 + 8; in place of those that are not there, the last.
  uint32_t row_offset[kTokenBlocks];
#pragma unroll
  for (int n = 0; n < kTokenBlocks; ++n)
    row_offset[n] = min(lane / 4 + 8 * n, p.tokens - 1) * kPiecePitch + lane % 4 * 4;
  int slot = 0, piece = 0;
  unsigned item = 0;
  uint32_t parity = 0;
  for (int round = 0; round < rounds; ++round) {
    if (round > 0) load_row_scales(round);
    float sums[kTokenBlocks][4] = {};
    // kSteps steps at once, `slices` apart, for their independent chains of instructions.
    const auto multiply = [&]<int kSteps>(std::integral_constant<int, kSteps>, int step, uint32_t codes) {
      uint32_t a[kSteps][16];
      int freed[kSteps];  // slots
      float scale0[kSteps][S::kDrains], scale1[kSteps][S::kDrains];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        ptx::barrier_wait(full + 8 * slot, parity);
        const uint32_t data = ring + slot * S::kSlotBytes, dense = data + lane * 16;
        const uint4 low = ptx::load_shared<uint4>(dense),
                    high = ptx::load_shared<uint4>(dense + kBlockBytes / 2);
        if ((item / 32 == present_batch ? present : present_before) >> item % 32 & 1) {
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
        ++item;
        freed[i] = slot;
        if (++slot == kSlots) {
          slot = 0;
          parity ^= 1;
        }
      }
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
              const uint32_t from = codes + i * p.slices * kStepColumns + row_offset[n] + k * kDrain + 32 * m;
              ptx::mma(d[i][n], a[i] + k * (kDrain / 8) + 4 * m, ptx::load_shared<uint32_t>(from),
                       ptx::load_shared<uint32_t>(from + 16));
            }
        if (k == 0) {  // while the tensor cores are busy
          __syncwarp();
#pragma unroll
          for (int i = 0; i < kSteps; ++i) copy_next(freed[i]);
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
      if (fed_pieces > 0) ptx::barrier_wait(piece_full + 8 * piece_slot, piece / p.pieces & 1);
      const uint32_t codes = pieces + piece_slot * piece_bytes;
      const auto at = [&] { return codes + (step - of * kPieceSteps) * kStepColumns; };
      for (; step + p.slices < end; step += 2 * p.slices)
        multiply(std::integral_constant<int, 2>{}, step, at());
      if (step < end) {
        multiply(std::integral_constant<int, 1>{}, step, at());
        step += p.slices;
      }
      // Where another piece comes into this slot. Every lane arrives: racecheck does not see one arrival of a
      // warp.
      if (piece + p.pieces < fed_pieces) ptx::barrier_arrive(piece_empty + 8 * piece_slot);
      if (warp == 0) feed(piece + 1 + p.pieces);
    }

    // The slices of a strip add up in order.
    float* own = partial + warp * 16 * kTokens;
#pragma unroll
    for (int n = 0; n < kTokenBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        own[(n * 8 + lane % 4 * 2 + i % 2) * 16 + lane / 4 + i / 2 * 8] = sums[n][i];
    if (threadIdx.x < 16 * p.cta_strips) row_scales[threadIdx.x] = row_scale;
    __syncthreads();
    if (p.gate.strips > 0) gate_codes<kTokens>(p, partial, row_scales, round * gridDim.x + blockIdx.x);
    const int results = p.gate.strips > 0 ? 0 : p.cta_strips * 16 * p.tokens;
    for (int i = threadIdx.x; i < results; i += kDecodeThreads) {
      const int local = i / (16 * p.tokens), within = i % (16 * p.tokens);
      const int row = ((round * gridDim.x + blockIdx.x) * p.cta_strips + local) * 16 + within % 16;
      if (row >= p.rows) continue;
      float sum = 0;
      for (int s = 0; s < p.slices; ++s) sum += partial[(local * p.slices + s) * 16 * kTokens + within];
      const float result =
          fmaf(sum, row_scales[local * 16 + within % 16], p.bias != nullptr ? p.bias[row] : 0.0f);
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
