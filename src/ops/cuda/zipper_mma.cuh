// The zipper product by mma.sync for Ampere, Ada and compute capability 12.x; docs/zipper.md explains it.
//
// A CTA of eight warps computes 128 rows of W against kTokens rows of x; cp.async fills a ring of stages of
// 128 columns. By nibbles, a residual block costs a second product: d = 16 (hi x) + lo x. By bytes, hi and lo
// become one operand, as on Hopper.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/ptx/async_copy.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/ptx/mma_nibbles.cuh"
#include "ops/cuda/zipper_matrix.h"
#include "ops/cuda/zipper_mma_launch.h"

namespace quatrain::ops::zipper {

inline constexpr int kMmaThreads = 256;
inline constexpr int kMmaSharedBytes = 99 * 1024;  // what a CTA may have on 8.6, 8.9 and 12.x

template <bool kNibblesValue, int kTokensValue, int kDrainValue>
struct MmaShape {
  static constexpr bool kNibbles = kNibblesValue;
  static constexpr int kTokens = kTokensValue, kDrain = kDrainValue;
  static constexpr int kRowWarps = kTokens == 16 ? 8 : kTokens == 64 ? 4 : 2;
  static constexpr int kWarpStrips = kStrips / kRowWarps;
  static constexpr int kWarpTokens = kTokens * kRowWarps / 8;
  static constexpr int kBlocks = kWarpTokens / 8;  // of 8 tokens: an mma's columns
  static constexpr int kDrains = kStepColumns / kDrain;
  static constexpr int kUnits = kDrain / 32;  // of 32 columns
  static constexpr int kCodeWords =
      kNibbles ? kUnits : 2 * kUnits;  // of a lane, a block of tokens and a drain
  static constexpr int kTokenBytes = kNibbles ? kStepColumns / 2 : kStepColumns;
  static constexpr int kCodeBytes = kTokens * kTokenBytes;
  static constexpr int kChunkBytes = kStrips * strip_bytes(kDrain, true);  // at most
  static constexpr int kScaleBytes = kDrains * kTokens * 8;                // scales, then zeros
  static constexpr int kStageBytes = kCodeBytes + kChunkBytes + kStrips * kBlockBytes + kScaleBytes;
  static constexpr int kHeaderBytes = 64;  // presence of each stage, flag
  static constexpr int kMostStages = (kMmaSharedBytes - kHeaderBytes) / kStageBytes;
  static constexpr int kStages = kMostStages < 6 ? kMostStages : 6;
  static constexpr int kSharedBytes = kHeaderBytes + kStages * kStageBytes;
  static_assert(kStages >= 3, "the ring must hide memory latency");
};

// Copies stages in the order in which the CTA's segments need them, ahead of the products.
template <typename S>
class MmaLoader {
 public:
  __device__ MmaLoader(const MmaParams& p, uint8_t* shared) : p_(p), shared_(shared) {
    cursor_ = p.schedule.start(blockIdx.x);
    more_ = p.schedule.next(blockIdx.x, cursor_, segment_);
    step_ = segment_.first_step;
    look_up();
  }

  /// Begins the next stage's copies, if any are left, and closes their group.
  __device__ void next() {
    if (more_) {
      copy();
      if (++step_ == segment_.last_step) {
        more_ = p_.schedule.next(blockIdx.x, cursor_, segment_);
        step_ = segment_.first_step;
      }
      look_up();
      if (++slot_ == S::kStages) slot_ = 0;
    }
    ptx::copy_async_commit();
  }

 private:
  // The table's entry is read one stage before it is needed.
  __device__ void look_up() {
    if (more_)
      entry_ = __ldg(p_.blocks + static_cast<int64_t>(segment_.row_tile) * p_.schedule.steps + step_);
  }

  // `bytes`, at most kMost: unrolled, since what a step costs beside its products is issue slots.
  template <int kMost>
  __device__ void copy_vectors(uint32_t to, const uint8_t* from, int bytes) {
    to += threadIdx.x * 16;
    from += threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < kMost; i += kMmaThreads * 16)
      if (i + static_cast<int>(threadIdx.x) * 16 < bytes) ptx::copy_async(to + i, from + i);
  }

  __device__ static int group_of(int column, int group, int shift, int groups) {
    // Columns past the edge have zero weights: any group will do there.
    return min(shift >= 0 ? column >> shift : column / group, groups - 1);
  }

  __device__ void copy() {
    uint8_t* stage = shared_ + S::kHeaderBytes + slot_ * S::kStageBytes;
    auto to = static_cast<uint32_t>(__cvta_generic_to_shared(stage));
    const int token = segment_.token_tile * S::kTokens;
    if constexpr (S::kNibbles) {
      copy_vectors<S::kCodeBytes>(to, p_.codes + (step_ * p_.token_stride + token) * S::kTokenBytes,
                                  S::kCodeBytes);
    } else {
      // Vectors are swizzled so that eight tokens' lie in different banks. Past the capacity the last row
      // stands in: nothing of it is stored.
#pragma unroll
      for (int i = 0; i < S::kTokens * 8; i += kMmaThreads) {
        const int row = i / 8 + threadIdx.x / 8, vector = threadIdx.x % 8;
        if (S::kTokens * 8 < kMmaThreads && row >= S::kTokens) break;
        const int64_t from = min(token + row, p_.capacity - 1) * p_.code_stride + step_ * kStepColumns;
        ptx::copy_async(to + row * kStepColumns + (vector ^ row % 8) * 16, p_.codes + from + vector * 16);
      }
    }
    to += S::kCodeBytes;
    const int64_t at = static_cast<int64_t>(segment_.row_tile) * p_.schedule.steps + step_;
    copy_vectors<S::kChunkBytes>(to, p_.chunks + at * p_.chunk_bytes, p_.chunk_bytes);
    to += S::kChunkBytes;
    if (entry_ & 255)
      copy_vectors<kStrips * kBlockBytes>(to, p_.residual + static_cast<int64_t>(entry_ >> 8) * kBlockBytes,
                                          __popc(entry_ & 255) * kBlockBytes);
    to += kStrips * kBlockBytes;
    constexpr int kVectors = S::kTokens / 4;  // of the scales of a drain
    static_assert(2 * S::kDrains * kVectors <= kMmaThreads);
    if (const int i = threadIdx.x; i < 2 * S::kDrains * kVectors) {
      const int drain = i / kVectors % S::kDrains, column = step_ * kStepColumns + drain * S::kDrain;
      const bool zeros = i >= S::kDrains * kVectors;
      const int group =
          zeros ? group_of(column, p_.zero_group, p_.zero_shift, p_.zero_groups)
                : group_of(column, p_.activation_group, p_.activation_shift, p_.activation_groups);
      const void* from = zeros ? static_cast<const void*>(p_.zero + group * p_.token_stride + token)
                               : static_cast<const void*>(p_.scale + group * p_.token_stride + token);
      ptx::copy_async(to + i * 16, static_cast<const uint8_t*>(from) + i % kVectors * 16);
    }
    if (threadIdx.x == 0) reinterpret_cast<uint32_t*>(shared_)[slot_] = entry_ & 255;
  }

  const MmaParams& p_;
  uint8_t* shared_;
  int64_t cursor_ = 0;
  ZipperSegment segment_{};
  bool more_ = false;
  int step_ = 0, slot_ = 0;
  uint32_t entry_ = 0;
};

// The words of one strip and drain, as the matrix stores them (zipper_matrix.h): two for 32 columns.
template <int kUnits>
__device__ __forceinline__ void load_words(const uint8_t* block, int drain, int lane,
                                           uint32_t (&words)[2 * kUnits]) {
  if constexpr (kUnits == 1) {
    const auto* from = reinterpret_cast<const uint2*>(block) + (drain / 2 * 32 + lane) * 2 + drain % 2;
    words[0] = from->x, words[1] = from->y;
  } else {
#pragma unroll
    for (int i = 0; i < kUnits / 2; ++i) {
      const uint4 v = reinterpret_cast<const uint4*>(block)[(drain + i) * 32 + lane];
      words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
  }
}

// Operands of mma_nibbles: register 2u for rows l/4, 2u + 1 for rows l/4 + 8. A byte of a word holds both
// rows' nibbles, so one bit-select of two words gives eight nibbles of one row, in the order of
// pack_nibbles(). Of hi words the upper halves are the lower rows', of lo words the lower halves.
template <int kUnits, bool kHi>
__device__ __forceinline__ void gather_nibbles(const uint32_t (&words)[2 * kUnits],
                                               uint32_t (&a)[2 * kUnits]) {
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const uint32_t x = words[2 * u], y = words[2 * u + 1];
    const uint32_t upper = (x & 0xF0F0F0F0u) | (y >> 4 & 0x0F0F0F0Fu);
    const uint32_t lower = (x << 4 & 0xF0F0F0F0u) | (y & 0x0F0F0F0Fu);
    a[2 * u] = kHi ? upper : lower;
    a[2 * u + 1] = kHi ? lower : upper;
  }
}

// d += a b over the columns of a drain.
template <int kUnits, bool kSigned>
__device__ __forceinline__ void multiply_nibbles(int (&d)[4], const uint32_t (&a)[2 * kUnits],
                                                 const uint32_t (&b)[kUnits]) {
  if constexpr (kUnits == 1) {
    ptx::mma_nibbles<kSigned>(d, a, b[0], d);
  } else {
#pragma unroll
    for (int u = 0; u < kUnits; u += 2) ptx::mma_nibbles<kSigned>(d, a + 2 * u, b[u], b[u + 1], d);
  }
}

// Codes of 8 tokens and one drain: mma's b.
template <typename S>
__device__ __forceinline__ void load_codes(const uint8_t* codes, int token, int drain, int lane,
                                           uint32_t (&b)[S::kCodeWords]) {
  if constexpr (S::kNibbles) {
    const auto* from = reinterpret_cast<const uint32_t*>(codes + (token + lane / 4) * S::kTokenBytes) +
                       lane % 4 * 4 + drain * S::kUnits;
    if constexpr (S::kUnits == 1) {
      b[0] = *from;
    } else if constexpr (S::kUnits == 2) {
      const uint2 v = *reinterpret_cast<const uint2*>(from);
      b[0] = v.x, b[1] = v.y;
    } else {
      const uint4 v = *reinterpret_cast<const uint4*>(from);
      b[0] = v.x, b[1] = v.y, b[2] = v.z, b[3] = v.w;
    }
  } else {
    const uint8_t* row = codes + (token + lane % 8) * kStepColumns;
    // Four vectors of 16 columns at a time; with one unit the upper two are read for nothing.
#pragma unroll
    for (int i = 0; i < (S::kUnits + 1) / 2; ++i) {
      const int vector = (drain * 2 * S::kUnits + i * 4 + lane / 8) % 8;
      uint32_t v[4];
      ptx::load_matrices<false>(v, row + (vector ^ lane % 8) * 16);
#pragma unroll
      for (int w = 0; w < 4; ++w)
        if (i * 4 + w < S::kCodeWords) b[i * 4 + w] = v[w];
    }
  }
}

// The products of one strip and drain with the tokens of a warp, zeros included. The result is in units of 1,
// or of 16 where `present` is false and the operands are nibbles.
template <typename S>
__device__ __forceinline__ void multiply_strip(const uint8_t* strip, const uint8_t* lo, bool present,
                                               int drain, int lane, int sum0, int sum1,
                                               const int2 (&z)[S::kBlocks],
                                               const uint32_t (&b)[S::kBlocks][S::kCodeWords],
                                               int (&d)[S::kBlocks][4]) {
  constexpr int kUnits = S::kUnits;
  uint32_t words[2 * kUnits];
  load_words<kUnits>(strip, drain, lane, words);
  if constexpr (S::kNibbles) {
    uint32_t a[2 * kUnits];
    gather_nibbles<kUnits, true>(words, a);
    if (!present) {
      // Without lo nibbles every code is a multiple of 16, and so is their sum.
      sum0 >>= 4, sum1 >>= 4;
#pragma unroll
      for (int n = 0; n < S::kBlocks; ++n) {
        d[n][0] = -z[n].x * sum0, d[n][1] = -z[n].y * sum0;
        d[n][2] = -z[n].x * sum1, d[n][3] = -z[n].y * sum1;
        multiply_nibbles<kUnits, true>(d[n], a, b[n]);
      }
      return;
    }
    load_words<kUnits>(lo, drain, lane, words);
    uint32_t a_lo[2 * kUnits];
    gather_nibbles<kUnits, false>(words, a_lo);
#pragma unroll
    for (int n = 0; n < S::kBlocks; ++n) {
      d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0;
      multiply_nibbles<kUnits, true>(d[n], a, b[n]);
    }
#pragma unroll
    for (int n = 0; n < S::kBlocks; ++n) {
      d[n][0] = d[n][0] * 16 - z[n].x * sum0, d[n][1] = d[n][1] * 16 - z[n].y * sum0;
      d[n][2] = d[n][2] * 16 - z[n].x * sum1, d[n][3] = d[n][3] * 16 - z[n].y * sum1;
      multiply_nibbles<kUnits, false>(d[n], a_lo, b[n]);
    }
  } else {
    uint32_t lo_words[2 * kUnits] = {};
    if (present) load_words<kUnits>(lo, drain, lane, lo_words);
    uint32_t a[4 * kUnits];
#pragma unroll
    for (int i = 0; i < 2 * kUnits; ++i) {
      a[2 * i] = (words[i] & 0xF0F0F0F0u) | (lo_words[i] & 0x0F0F0F0Fu);
      a[2 * i + 1] = (words[i] << 4 & 0xF0F0F0F0u) | (lo_words[i] >> 4 & 0x0F0F0F0Fu);
    }
#pragma unroll
    for (int n = 0; n < S::kBlocks; ++n) {
      d[n][0] = -z[n].x * sum0, d[n][1] = -z[n].y * sum0;
      d[n][2] = -z[n].x * sum1, d[n][3] = -z[n].y * sum1;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) ptx::mma(d[n], a + 4 * u, b[n][2 * u], b[n][2 * u + 1]);
    }
  }
}

// One stage: sums += s (scale) * (P - z S) of every group, which is an exact integer below 2^30.
template <typename S>
__device__ __forceinline__ void multiply_stage(const MmaParams& p, const uint8_t* stage, uint32_t presence,
                                               int first_strip, int first_token, int lane,
                                               float (&sums)[S::kWarpStrips][S::kBlocks][4]) {
  const uint8_t *chunk = stage + S::kCodeBytes, *residual = chunk + S::kChunkBytes;
  const auto* scales = reinterpret_cast<const float*>(residual + kStrips * kBlockBytes) + first_token;
  const int stride = strip_bytes(S::kDrain, p.group_scales);
#pragma unroll
  for (int i = 0; i < S::kDrains; ++i) {
    uint32_t b[S::kBlocks][S::kCodeWords];
    float2 s[S::kBlocks];
    int2 z[S::kBlocks];
#pragma unroll
    for (int n = 0; n < S::kBlocks; ++n) {
      load_codes<S>(stage, first_token + 8 * n, i, lane, b[n]);
      const float* at = scales + i * S::kTokens + 8 * n + lane % 4 * 2;
      s[n] = *reinterpret_cast<const float2*>(at);
      z[n] = *reinterpret_cast<const int2*>(at + S::kDrains * S::kTokens);
    }
#pragma unroll
    for (int r = 0; r < S::kWarpStrips; ++r) {
      const uint8_t* strip = chunk + (first_strip + r) * stride;
      const bool present = presence >> (first_strip + r) & 1;
      const uint8_t* lo = residual + __popc(presence & ((1u << (first_strip + r)) - 1)) * kBlockBytes;
      const auto* weight_scales = reinterpret_cast<const __half*>(strip + kBlockBytes) + i * 16 + lane / 4;
      const auto* code_sums =
          reinterpret_cast<const int16_t*>(strip + stride) - (S::kDrains - i) * 16 + lane / 4;
      int d[S::kBlocks][4];
      multiply_strip<S>(strip, lo, present, i, lane, code_sums[0], code_sums[8], z, b, d);
      const float unit = S::kNibbles && !present ? 16.0f : 1.0f;
      const float scale0 = p.group_scales ? unit * __half2float(weight_scales[0]) : unit;
      const float scale1 = p.group_scales ? unit * __half2float(weight_scales[8]) : unit;
#pragma unroll
      for (int n = 0; n < S::kBlocks; ++n) {
        float(&to)[4] = sums[r][n];
        to[0] = fmaf(s[n].x * scale0, __int2float_rn(d[n][0]), to[0]);
        to[1] = fmaf(s[n].y * scale0, __int2float_rn(d[n][1]), to[1]);
        to[2] = fmaf(s[n].x * scale1, __int2float_rn(d[n][2]), to[2]);
        to[3] = fmaf(s[n].y * scale1, __int2float_rn(d[n][3]), to[3]);
      }
    }
  }
}

// Adds the shares of a tile that several workers computed, in the order of K. True for the CTA that arrived
// last: it then holds the whole sum.
template <int kResults>
__device__ bool combine_shares(const MmaParams& p, int* flag, const ZipperSegment& segment,
                               float (&sums)[kResults]) {
  constexpr int kVectors = kResults / 4;
  const ZipperSchedule& schedule = p.schedule;
  const int first = schedule.first_worker(segment.tile), last = schedule.last_worker(segment.tile);
  const auto share = [&](int of) {
    const int which = schedule.place_of(segment.tile, of);
    return reinterpret_cast<float4*>(p.partial) +
           (static_cast<int64_t>(of) * 2 + which) * kVectors * kMmaThreads + threadIdx.x;
  };
  float4* own = share(blockIdx.x);
#pragma unroll
  for (int j = 0; j < kVectors; ++j)
    own[j * kMmaThreads] = make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const bool is_last = atomicAdd(p.arrived + segment.tile, 1) == last - first;
    if (is_last) p.arrived[segment.tile] = 0;
    *flag = is_last;
  }
  __syncthreads();
  const bool is_last = *flag;
  __syncthreads();
  if (!is_last) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < kResults; ++i) sums[i] = 0;
  for (int of = first; of <= last; ++of) {
    const float4* from = share(of);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const float4 v = __ldcg(from + j * kMmaThreads);
      sums[4 * j] += v.x, sums[4 * j + 1] += v.y, sums[4 * j + 2] += v.z, sums[4 * j + 3] += v.w;
    }
  }
  return true;
}

// Scale, bias and store of a warp's strip: rows row and row + 8, tokens token + 8 n + {0, 1}.
template <int kBlocks>
__device__ __forceinline__ void store_strip(const MmaParams& p, int row, int token,
                                            const float (&sums)[kBlocks][4]) {
  const float scale[2] = {p.row_scale[row], p.row_scale[row + 8]};
  const float bias[2] = {p.bias != nullptr ? p.bias[row] : 0.0f, p.bias != nullptr ? p.bias[row + 8] : 0.0f};
#pragma unroll
  for (int n = 0; n < kBlocks; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = token + 8 * n + i % 2, o = row + i / 2 * 8;
      if (t >= p.tokens || o >= p.rows) continue;
      const float value = fmaf(sums[n][i], scale[i / 2], bias[i / 2]);
      if (p.y_fp32)
        static_cast<float*>(p.y)[t * p.y_stride + o] = value;
      else
        static_cast<__nv_bfloat16*>(p.y)[t * p.y_stride + o] = __float2bfloat16(value);
    }
}

template <typename S>
__global__ void __launch_bounds__(kMmaThreads, 1) mma_kernel(const __grid_constant__ MmaParams p) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kResults = S::kWarpStrips * S::kBlocks * 4;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int first_strip = warp % S::kRowWarps * S::kWarpStrips;
  const int first_token = warp / S::kRowWarps * S::kWarpTokens;
  MmaLoader<S> loader(p, shared);
  for (int i = 0; i + 1 < S::kStages; ++i) loader.next();

  int slot = 0;
  ZipperSegment segment;
  for (int64_t cursor = p.schedule.start(blockIdx.x); p.schedule.next(blockIdx.x, cursor, segment);) {
    float sums[S::kWarpStrips][S::kBlocks][4] = {};
    for (int step = segment.first_step; step < segment.last_step; ++step) {
      ptx::copy_async_wait<S::kStages - 2>();
      __syncthreads();  // the stage is whole, and all have left the one that is filled next
      loader.next();
      multiply_stage<S>(p, shared + S::kHeaderBytes + slot * S::kStageBytes,
                        reinterpret_cast<const uint32_t*>(shared)[slot], first_strip, first_token, lane,
                        sums);
      if (++slot == S::kStages) slot = 0;
    }
    const bool whole = segment.first_step == 0 && segment.last_step == p.schedule.steps;
    if (!whole && !combine_shares<kResults>(p, reinterpret_cast<int*>(shared) + 15, segment,
                                            *reinterpret_cast<float(*)[kResults]>(&sums)))
      continue;
    const int row = segment.row_tile * kTileRows + first_strip * 16 + lane / 4;
    const int token = segment.token_tile * S::kTokens + first_token + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < S::kWarpStrips; ++r) store_strip<S::kBlocks>(p, row + 16 * r, token, sums[r]);
  }
}

template <typename S>
void launch_mma(const MmaParams& params, cudaStream_t stream) {
  const auto kernel = mma_kernel<S>;
  static const cudaError_t prepared =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  cuda_check(prepared, "zipper product by mma: shared memory");
  kernel<<<static_cast<unsigned>(params.schedule.workers), kMmaThreads, S::kSharedBytes, stream>>>(params);
  cuda_check(cudaGetLastError(), "zipper product by mma");
}

template <bool kNibbles, int kTokens>
void launch_mma(int drain, const MmaParams& params, cudaStream_t stream) {
  if (drain == 128) return launch_mma<MmaShape<kNibbles, kTokens, 128>>(params, stream);
  if (drain == 64) return launch_mma<MmaShape<kNibbles, kTokens, 64>>(params, stream);
  launch_mma<MmaShape<kNibbles, kTokens, 32>>(params, stream);
}

}  // namespace quatrain::ops::zipper
