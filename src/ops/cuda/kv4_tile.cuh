// Attention of up to 8 query heads over 32 tokens of a 4-bit page, by one warp. Keys and values are the wide
// operand of the tensor cores (16 tokens, then 16 columns), the query heads the narrow one, so that every mma
// is useful and nothing is dequantised: scores are s (q . code - z sum(q)), and values' scales go into the
// probabilities. Key codes stay bytes: a query is two signed bytes a column, and its products are exact.
#pragma once

#include <cuda_fp16.h>

#include "ops/cuda/kv_pages.h"
#include "ops/cuda/ptx/mma.cuh"

namespace quatrain::ops::kv4 {

inline constexpr int kTile = 16;    // tokens of an mma
inline constexpr int kUnit = 32;    // tokens of a warp at a time: two tiles of one page
inline constexpr int kHeads = 8;    // query heads of a kv head, padded
inline constexpr float kSlack = 3;  // scores may exceed the largest that sums refer to by so many powers of 2
inline constexpr float kBoost = 8;  // keeps probability * scale in FP16's normal range; scales are below
                                    // 1,023, probabilities below 2^kSlack

__device__ __forceinline__ uint32_t as_bits(__half2 x) {
  return *reinterpret_cast<uint32_t*>(&x);
}
__device__ __forceinline__ __half2 as_halves(uint32_t x) {
  return *reinterpret_cast<__half2*>(&x);
}

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
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

// The queries as the narrow operand: a lane's head is lane / 4, its columns the quarter lane % 4, those of
// block w the even and the odd of 8 w ... 8 w + 7. q = scale * (256 * high + low); `scale` and `sum` (of the
// integers) are of heads 2 (lane % 4) + {0, 1}.
template <int kDim>
struct Queries {
  uint32_t high[kDim / 32][2], low[kDim / 32][2];
  float scale[2], sum[2];
};

// What a lane reads of 32 tokens, a tile of 16 after the other: of keys the rows lane / 4 and + 8, a quarter
// of the columns each; of values the four tokens 2 (lane % 4) + {0, 1, 8, 9}, an eighth of the columns each.
template <int kDim>
struct Unit {
  static constexpr int kKeyWords = kDim / 32, kValueWords = kDim / 64;
  static constexpr int kCodesBytes = kKvPageTokens * kDim / 2;  // of a page's keys, and of its values
  uint32_t keys[2][2][kKeyWords], values[2][4][kValueWords];
  uint32_t key_scales[2][2], value_scales[2][2];

  // `at`: the head's part of a page, `slot`: the first token's there.
  __device__ __forceinline__ void load_keys(const uint8_t* at, int slot, int lane) {
    const int row = slot + lane / 4;
    const auto* pairs = reinterpret_cast<const uint32_t*>(at + 2 * kCodesBytes) + row;
    const uint8_t* from = at + row * (kDim / 2) + lane % 4 * (kDim / 8);
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        load_words(from + (kTile * t + 8 * i) * (kDim / 2), keys[t][i]);
        key_scales[t][i] = __ldcs(pairs + kTile * t + 8 * i);
      }
  }
  __device__ __forceinline__ void load_values(const uint8_t* at, int slot, int lane) {
    const auto* pairs =
        reinterpret_cast<const uint32_t*>(at + 2 * kCodesBytes) + kKvPageTokens + slot + lane / 4;
    const uint8_t* from = at + kCodesBytes + (slot + 2 * (lane % 4)) * (kDim / 2) + lane / 4 * (kDim / 16);
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        load_words(from + (kTile * t + i % 2 + i / 2 * 8) * (kDim / 2), values[t][i]);
#pragma unroll
      for (int i = 0; i < 2; ++i) value_scales[t][i] = __ldcs(pairs + kTile * t + 8 * i);
    }
  }
  // Puts in a token (counted within the unit) that the pages did not hold yet: its codes, then scale and
  // zero.
  __device__ __forceinline__ void replace(int token, const uint32_t* key, const uint32_t* value, int lane) {
    const auto put = [](bool here, uint32_t x, uint32_t& to) { to = here ? x : to; };
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool here = kTile * t + lane / 4 + 8 * i == token;
        put(here, key[kDim / 8], key_scales[t][i]);
        put(here, value[kDim / 8], value_scales[t][i]);
#pragma unroll
        for (int w = 0; w < kKeyWords; ++w) put(here, key[lane % 4 * kKeyWords + w], keys[t][i][w]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int w = 0; w < kValueWords; ++w)
          put(kTile * t + 2 * (lane % 4) + i % 2 + i / 2 * 8 == token, value[lane / 4 * kValueWords + w],
              values[t][i][w]);
    }
  }
  // Takes the values of tokens outside [skip, valid) away; slots that nothing was written to may hold NaN.
  __device__ __forceinline__ void hide(int skip, int valid, int lane) {
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = kTile * t + lane / 4 + 8 * i;
        if (token < skip || token >= valid) value_scales[t][i] = 0;
      }
  }
  template <int kWords>
  static __device__ __forceinline__ void load_words(const uint8_t* from, uint32_t (&to)[kWords]) {
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

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < kDim / 16; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[j][i] = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest[h] = -1e30f;
      sum[h] = zeros[h] = 0;
    }
  }
};

// Scores of the unit's tokens [skip, valid), -infinity elsewhere, as powers of 2: [tile][d of mma].
template <int kDim>
__device__ __forceinline__ void score(const Unit<kDim>& unit, const Queries<kDim>& q, int skip, int valid,
                                      int lane, float (&scores)[2][4]) {
  int high[2][4] = {}, low[2][4] = {};
#pragma unroll
  for (int w = 0; w < kDim / 32; ++w)
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const uint32_t x = unit.keys[t][0][w], y = unit.keys[t][1][w];
      const uint32_t a[4] = {x & 0x0F0F0F0Fu, y & 0x0F0F0F0Fu, x >> 4 & 0x0F0F0F0Fu, y >> 4 & 0x0F0F0F0Fu};
      ptx::mma(high[t], a, q.high[w][0], q.high[w][1]);
      ptx::mma(low[t], a, q.low[w][0], q.low[w][1]);
    }
#pragma unroll
  for (int t = 0; t < 2; ++t)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = unit.key_scales[t][i / 2];
      const float product = static_cast<float>(high[t][i] * 256 + low[t][i]);
      scores[t][i] = scale_of(pair) * q.scale[i % 2] * fmaf(-zero_of(pair), q.sum[i % 2], product);
    }
  if (skip <= 0 && valid >= kUnit) return;
#pragma unroll
  for (int t = 0; t < 2; ++t)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = kTile * t + lane / 4 + 8 * (i / 2);
      if (token < skip || token >= valid) scores[t][i] = -INFINITY;
    }
}

// The values of these tokens into the running softmax. Tokens without a score must be hidden.
template <int kDim>
__device__ __forceinline__ void add_values(const Unit<kDim>& unit, const float (&scores)[2][4],
                                           State<kDim>& state) {
  float largest[2];
#pragma unroll
  for (int h = 0; h < 2; ++h)
    largest[h] = fmaxf(fmaxf(scores[0][h], scores[0][2 + h]), fmaxf(scores[1][h], scores[1][2 + h]));
  // Sums refer to a score that need not be the largest: it changes rarely, and so do the sums.
  if (__any_sync(~0u, largest[0] > state.largest[0] + kSlack || largest[1] > state.largest[1] + kSlack)) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2)
        largest[h] = fmaxf(largest[h], __shfl_xor_sync(~0u, largest[h], distance));
      largest[h] = fmaxf(largest[h], state.largest[h]);
      const float fade = power_of_two(state.largest[h] - largest[h]);
      state.largest[h] = largest[h];
      state.sum[h] *= fade;
      state.zeros[h] *= fade;
#pragma unroll
      for (int j = 0; j < kDim / 16; ++j) {
        state.out[j][h] *= fade;
        state.out[j][2 + h] *= fade;
      }
    }
  }
  uint32_t weights[2]
                  [2];  // probability * value scale of a tile's tokens lane / 4 and + 8, two heads a register
#pragma unroll
  for (int t = 0; t < 2; ++t)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t pair = unit.value_scales[t][i];
      const float s = scale_of(pair) * kBoost, z = zero_of(pair);
      const float p0 = power_of_two(scores[t][2 * i] - state.largest[0]),
                  p1 = power_of_two(scores[t][2 * i + 1] - state.largest[1]);
      state.sum[0] += p0;
      state.sum[1] += p1;
      const __half2 w = __floats2half2_rn(p0 * s, p1 * s);
      // Of the rounded weights, so that offsets cancel.
      state.zeros[0] = fmaf(__low2float(w), z, state.zeros[0]);
      state.zeros[1] = fmaf(__high2float(w), z, state.zeros[1]);
      weights[t][i] = ptx::transpose_halves(as_bits(w));
    }
    // Column pairs (i, i + 4) of a word of each of two tokens become A registers of tokens' pairs.
#pragma unroll
  for (int w = 0; w < kDim / 64; ++w)
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const auto& v = unit.values[t];
      uint32_t near_low[4], near_high[4], far_low[4], far_high[4];
      unpack(__byte_perm(v[0][w], v[1][w], 0x5410), near_low);   // columns 0 ... 3
      unpack(__byte_perm(v[0][w], v[1][w], 0x7632), near_high);  // columns 4 ... 7
      unpack(__byte_perm(v[2][w], v[3][w], 0x5410), far_low);
      unpack(__byte_perm(v[2][w], v[3][w], 0x7632), far_high);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        ptx::mma_half(state.out[4 * w + i], near_low[i], near_high[i], far_low[i], far_high[i], weights[t][0],
                      weights[t][1]);
    }
}

}  // namespace quatrain::ops::kv4
