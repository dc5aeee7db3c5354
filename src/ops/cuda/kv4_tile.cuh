// Attention of up to 8 query heads over 16 tokens of a 4-bit page, by one warp. Keys and values are the wide
// operand of the tensor cores (16 tokens, then 16 columns), the query heads the narrow one, so that every mma
// is useful and nothing is dequantised: scores are s (q . code - z sum(q)), and values' scales go into the
// probabilities.
#pragma once

#include <cuda_fp16.h>

#include "ops/cuda/kv_pages.h"
#include "ops/cuda/ptx/mma.cuh"

namespace quatrain::ops::kv4 {

inline constexpr int kTile = 16;  // tokens of a warp at a time
inline constexpr int kHeads = 8;  // query heads of a kv head, padded
inline constexpr float kBoost =
    64;  // keeps probability * scale in FP16's normal range; scales are below 1,023

__device__ __forceinline__ uint32_t as_bits(__half2 x) {
  return *reinterpret_cast<uint32_t*>(&x);
}
__device__ __forceinline__ __half2 as_halves(uint32_t x) {
  return *reinterpret_cast<__half2*>(&x);
}

// Nibbles i and i + 4 of a word as FP16 pairs, i = 0 ... 3: 1024 + q has q in its last bits, 1024 + 16 q too.
__device__ __forceinline__ void unpack(uint32_t x, uint32_t (&pairs)[4]) {
  const __half2 bias = __float2half2_rn(-1024.0f), wide = __float2half2_rn(0.0625f),
                wide_bias = __float2half2_rn(-64.0f);
  const uint32_t y = x >> 8;
  pairs[0] = as_bits(__hadd2(as_halves((x & 0x000F000Fu) | 0x64006400u), bias));
  pairs[1] = as_bits(__hfma2(as_halves((x & 0x00F000F0u) | 0x64006400u), wide, wide_bias));
  pairs[2] = as_bits(__hadd2(as_halves((y & 0x000F000Fu) | 0x64006400u), bias));
  pairs[3] = as_bits(__hfma2(as_halves((y & 0x00F000F0u) | 0x64006400u), wide, wide_bias));
}

__device__ __forceinline__ float scale_of(uint32_t pair) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair)));
}
__device__ __forceinline__ float zero_of(uint32_t pair) {
  return static_cast<float>(static_cast<int32_t>(pair) >> 16);
}

// What a lane reads of 16 tokens: of keys the rows lane / 4 and + 8, a quarter of the columns each; of values
// the four tokens 2 (lane % 4) + {0, 1, 8, 9}, an eighth of the columns each.
template <int kDim>
struct Tile {
  static constexpr int kKeyWords = kDim / 32, kValueWords = kDim / 64;
  uint32_t keys[2][kKeyWords], values[4][kValueWords];
  uint32_t key_scales[2], value_scales[2];

  __device__ void load(const DeviceKvLayout& layout, const uint8_t* pages, const int32_t* table, int head,
                       int token, int lane) {
    const uint8_t* at = pages + layout.at(__ldg(table + token / kKvPageTokens), head);
    const int slot = token % kKvPageTokens, row = lane / 4, column = lane % 4;
    const uint8_t* values_at = at + layout.codes_bytes();
    const auto* pairs = reinterpret_cast<const uint32_t*>(at + 2 * layout.codes_bytes()) + slot + row;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_words(at + (slot + row + 8 * i) * (kDim / 2) + column * (kDim / 8), keys[i]);
      key_scales[i] = __ldcs(pairs + 8 * i);
      value_scales[i] = __ldcs(pairs + kKvPageTokens + 8 * i);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      load_words(values_at + (slot + 2 * column + i % 2 + i / 2 * 8) * (kDim / 2) + row * (kDim / 16),
                 values[i]);
  }
  template <int kWords>
  static __device__ void load_words(const uint8_t* from, uint32_t (&to)[kWords]) {
    if constexpr (kWords % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        const uint4 v = __ldcs(reinterpret_cast<const uint4*>(from) + i);
        to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
      }
    } else if constexpr (kWords == 2) {
      const uint2 v = __ldcs(reinterpret_cast<const uint2*>(from));
      to[0] = v.x, to[1] = v.y;
    } else {
      to[0] = __ldcs(reinterpret_cast<const uint32_t*>(from));
    }
  }
};

// The running softmax of a lane: of heads 2 (lane % 4) + {0, 1}, over the tokens that the warp has seen.
template <int kDim>
struct State {
  float out[kDim / 16][4];  // columns x heads, like d of mma_half
  float largest[2], sum[2], zeros[2];
};

// Tokens [skip, valid) of the tile count.
template <int kDim>
__device__ void attend(const Tile<kDim>& tile, const uint32_t (&q)[kDim / 16][2], const float (&q_sums)[2],
                       float scale, int skip, int valid, int lane, State<kDim>& state) {
  float scores[4] = {0, 0, 0, 0};
#pragma unroll
  for (int w = 0; w < kDim / 32; ++w) {
    uint32_t upper[4], lower[4];
    unpack(tile.keys[0][w], upper);
    unpack(tile.keys[1][w], lower);
    ptx::mma_half(scores, upper[0], lower[0], upper[1], lower[1], q[2 * w][0], q[2 * w][1]);
    ptx::mma_half(scores, upper[2], lower[2], upper[3], lower[3], q[2 * w + 1][0], q[2 * w + 1][1]);
  }
  const int row = lane / 4;
  const auto counts = [&](int i) { return row + 8 * i >= skip && row + 8 * i < valid; };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t pair = tile.key_scales[i / 2];
    scores[i] =
        counts(i / 2) ? scale * scale_of(pair) * (scores[i] - zero_of(pair) * q_sums[i % 2]) : -INFINITY;
  }
  uint32_t weights[2];  // probability * value scale of tokens `row` and row + 8, two heads a register
  float probabilities[4];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest = fmaxf(scores[h], scores[2 + h]);
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
    largest = fmaxf(largest, state.largest[h]);  // finite: a tile has at least one token
    const float fade = exp2f(state.largest[h] - largest);
    state.largest[h] = largest;
    probabilities[h] = exp2f(scores[h] - largest);
    probabilities[2 + h] = exp2f(scores[2 + h] - largest);
    state.sum[h] = state.sum[h] * fade + probabilities[h] + probabilities[2 + h];
    state.zeros[h] *= fade;
#pragma unroll
    for (int j = 0; j < kDim / 16; ++j) {
      state.out[j][h] *= fade;
      state.out[j][2 + h] *= fade;
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float s = counts(i) ? scale_of(tile.value_scales[i]) * kBoost : 0.0f;
    const __half2 w = __floats2half2_rn(probabilities[2 * i] * s, probabilities[2 * i + 1] * s);
    const float z = counts(i) ? zero_of(tile.value_scales[i]) : 0.0f;
    state.zeros[0] =
        fmaf(__low2float(w), z, state.zeros[0]);  // of the rounded weights, so that offsets cancel
    state.zeros[1] = fmaf(__high2float(w), z, state.zeros[1]);
    weights[i] = ptx::transpose_halves(as_bits(w));
  }
  // Column pairs (i, i + 4) of a word of each of two tokens become A registers of tokens' pairs.
#pragma unroll
  for (int w = 0; w < kDim / 64; ++w) {
    uint32_t near_low[4], near_high[4], far_low[4], far_high[4];
    unpack(__byte_perm(tile.values[0][w], tile.values[1][w], 0x5410), near_low);   // columns 0 ... 3
    unpack(__byte_perm(tile.values[0][w], tile.values[1][w], 0x7632), near_high);  // columns 4 ... 7
    unpack(__byte_perm(tile.values[2][w], tile.values[3][w], 0x5410), far_low);
    unpack(__byte_perm(tile.values[2][w], tile.values[3][w], 0x7632), far_high);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      ptx::mma_half(state.out[4 * w + i], near_low[i], near_high[i], far_low[i], far_high[i], weights[0],
                    weights[1]);
  }
}

}  // namespace quatrain::ops::kv4
