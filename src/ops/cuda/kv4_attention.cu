// Decode attention over 4-bit pages. Keys and values are the wide operand of the tensor cores (16 tokens,
// then 16 columns), the up to 8 query heads of a kv head the narrow one, so that every mma is useful and
// nothing is dequantised: scores are s (q . code - z sum(q)), and values' scales go into the probabilities.
#include <cuda_fp16.h>

#include <algorithm>

#include "ops/cuda/dependent_launch.h"
#include "ops/cuda/gpu.h"
#include "ops/cuda/kv_pages.h"
#include "ops/cuda/ptx/launch.cuh"
#include "ops/cuda/ptx/mma.cuh"

namespace quatrain::ops {
namespace {

constexpr int kWarps = 4;
constexpr int kTile = 16;  // tokens of a warp at a time
constexpr int kHeads = 8;  // query heads of a kv head, padded
constexpr int kMaxSplits = 64;
constexpr float kBoost = 64;  // keeps probability * scale in FP16's normal range; scales are below 1,023

struct AttentionParams {
  DeviceKvLayout layout;
  const uint8_t* pages;
  KvRows rows;
  KvAttention attention;
  int group;  // query heads of a kv head
  int splits;
  float* partial;  // [row, kv head, split][kHeads * (head_dim + 2)]
  int* arrived;
};

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

  __device__ void load(const AttentionParams& p, const int32_t* table, int head, int token, int lane) {
    const uint8_t* at = p.pages + p.layout.at(__ldg(table + token / kKvPageTokens), head);
    const int slot = token % kKvPageTokens, row = lane / 4, column = lane % 4;
    const uint8_t* values_at = at + p.layout.codes_bytes();
    const auto* pairs = reinterpret_cast<const uint32_t*>(at + 2 * p.layout.codes_bytes()) + slot + row;
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

// One CTA a (row, kv head, split); its warps take every fourth tile.
template <int kDim>
__global__ void __launch_bounds__(kWarps * 32, kDim == 256 ? 2 : 4)
    attention_kernel(const __grid_constant__ AttentionParams p) {
  constexpr int kRecord = kHeads * (kDim + 2);
  __shared__ __align__(16) float shared[kWarps][kRecord];
  static_assert(kRecord % 4 == 0);
  __shared__ float weights[kMaxSplits][kHeads];
  __shared__ bool is_last;
  ptx::allow_next_kernel();
  ptx::wait_for_previous_kernel();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int split = blockIdx.x % p.splits, pair = blockIdx.x / p.splits;
  const int head = pair % p.layout.kv_heads, batch_row = pair / p.layout.kv_heads;
  const int length = p.rows.lengths[batch_row];
  const int32_t* table = p.rows.pages_of(batch_row);
  const int begin = p.attention.window > 0 ? max(0, length - p.attention.window) : 0;
  const int begin_tile = begin / kTile, tiles = (length + kTile - 1) / kTile - begin_tile;
  const int first = begin_tile + static_cast<int>(static_cast<int64_t>(tiles) * split / p.splits);
  const int last = begin_tile + static_cast<int>(static_cast<int64_t>(tiles) * (split + 1) / p.splits);

  // Key columns of lane c = lane % 4: a quarter; word w's nibbles 0 ... 7 are columns 8 w ... 8 w + 7 of it.
  uint32_t q[kDim / 16][2];
  float q_sums[2] = {0, 0};
  {
    const int query = lane / 4;
    const float* from = p.attention.q + batch_row * p.attention.q_stride +
                        (head * p.group + min(query, p.group - 1)) * kDim + lane % 4 * (kDim / 4);
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kDim / 32; ++w) {
      __half x[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        x[i] = __float2half_rn(query < p.group ? from[8 * w + i] : 0.0f);
        sum += __half2float(x[i]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) q[2 * w + i / 2][i % 2] = as_bits(__halves2half2(x[i], x[i + 4]));
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    for (int h = 0; h < 2; ++h) q_sums[h] = __shfl_sync(~0u, sum, (lane % 4 * 2 + h) * 4);
  }

  State<kDim> state;
#pragma unroll
  for (int j = 0; j < kDim / 16; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) state.out[j][i] = 0;
  for (int h = 0; h < 2; ++h) {
    state.largest[h] = -1e30f;
    state.sum[h] = state.zeros[h] = 0;
  }
  // Two tiles are always on their way.
  const float scale = p.attention.scale * 1.44269504f;  // exp2
  Tile<kDim> a, b;
  int tile = first + warp;
  if (tile < last) a.load(p, table, head, tile * kTile, lane);
  if (tile + kWarps < last) b.load(p, table, head, (tile + kWarps) * kTile, lane);
  for (; tile < last; tile += 2 * kWarps) {
    attend<kDim>(a, q, q_sums, scale, begin - tile * kTile, length - tile * kTile, lane, state);
    if (tile + 2 * kWarps < last) a.load(p, table, head, (tile + 2 * kWarps) * kTile, lane);
    if (tile + kWarps >= last) break;
    attend<kDim>(b, q, q_sums, scale, begin - (tile + kWarps) * kTile, length - (tile + kWarps) * kTile, lane,
                 state);
    if (tile + 3 * kWarps < last) b.load(p, table, head, (tile + 3 * kWarps) * kTile, lane);
  }

  // Sums over the tokens of other lanes, then a record a warp: [head][column], sums, largest scores.
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      state.sum[h] += __shfl_xor_sync(~0u, state.sum[h], distance);
      state.zeros[h] += __shfl_xor_sync(~0u, state.zeros[h], distance);
    }
  float* record = shared[warp];
#pragma unroll
  for (int j = 0; j < kDim / 16; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Row r of block 4 w + n is column 8 w + n of the lane's eighth, row r + 8 column 8 w + n + 4.
      const int column = lane / 4 * (kDim / 8) + j / 4 * 8 + j % 4 + i / 2 * 4;
      record[(lane % 4 * 2 + i % 2) * kDim + column] = (state.out[j][i] - state.zeros[i % 2]) * (1 / kBoost);
    }
  if (lane < 4)
    for (int h = 0; h < 2; ++h) {
      record[kHeads * kDim + lane * 2 + h] = state.sum[h];
      record[kHeads * (kDim + 1) + lane * 2 + h] = state.largest[h];
    }
  __syncthreads();

  // From here on a thread has four neighbouring columns of a query.
  const int vectors = p.group * (kDim / 4);
  const auto store = [&](int vector, float4 value) {
    float* to = p.attention.out + batch_row * p.attention.out_stride + head * p.group * kDim + vector * 4;
    to[0] = value.x, to[1] = value.y, to[2] = value.z, to[3] = value.w;
  };
  const auto add = [](float weight, float4 value, float4& to) {
    to.x = fmaf(weight, value.x, to.x);
    to.y = fmaf(weight, value.y, to.y);
    to.z = fmaf(weight, value.z, to.z);
    to.w = fmaf(weight, value.w, to.w);
  };
  float* own = p.partial + static_cast<int64_t>(blockIdx.x) * kRecord;
  for (int i = threadIdx.x; i < vectors; i += kWarps * 32) {
    const int query = i / (kDim / 4);
    float largest = -1e30f, sum = 0;
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, shared[w][kHeads * (kDim + 1) + query]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight = exp2f(shared[w][kHeads * (kDim + 1) + query] - largest);
      add(weight, *reinterpret_cast<const float4*>(&shared[w][4 * i]), total);
      sum += weight * shared[w][kHeads * kDim + query];
    }
    if (p.splits == 1) {
      store(i, make_float4(total.x / sum, total.y / sum, total.z / sum, total.w / sum));
      continue;
    }
    reinterpret_cast<float4*>(own)[i] = total;
    if (i % (kDim / 4) == 0) {
      own[kHeads * kDim + query] = sum;
      own[kHeads * (kDim + 1) + query] = largest;
    }
  }
  if (p.splits == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(p.arrived + pair, 1) == p.splits - 1;
    if (is_last) p.arrived[pair] = 0;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  const float* records = p.partial + static_cast<int64_t>(pair) * p.splits * kRecord;
  // A record's weight: its largest score against the largest of all, over the common sum; 16 lanes a query.
  {
    static_assert(kWarps * 32 == kHeads * 16);
    const int query = threadIdx.x / 16, part = threadIdx.x % 16;
    const float* sums = records + kHeads * kDim + query;
    const float* maxima = records + kHeads * (kDim + 1) + query;
    float maximum[kMaxSplits / 16], share[kMaxSplits / 16], largest = -1e30f, sum = 0;
#pragma unroll
    for (int i = 0; i < kMaxSplits / 16; ++i) {
      const int record = part + 16 * i;
      maximum[i] = record < p.splits ? __ldcg(maxima + record * kRecord) : -INFINITY;
      share[i] = record < p.splits ? __ldcg(sums + record * kRecord) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kMaxSplits / 16; ++i) largest = fmaxf(largest, maximum[i]);
    for (int distance = 8; distance > 0; distance /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
#pragma unroll
    for (int i = 0; i < kMaxSplits / 16; ++i) {
      maximum[i] = exp2f(maximum[i] - largest);
      sum += maximum[i] * share[i];
    }
    for (int distance = 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
#pragma unroll
    for (int i = 0; i < kMaxSplits / 16; ++i) weights[part + 16 * i][query] = maximum[i] / sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < vectors; i += kWarps * 32) {
    const auto* from = reinterpret_cast<const float4*>(records) + i;
    float4 total = make_float4(0, 0, 0, 0);
    constexpr int kAtOnce = 16;  // each load is a trip to L2
    for (int first_record = 0; first_record < p.splits; first_record += kAtOnce) {
      float4 values[kAtOnce];
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s)
        values[s] = first_record + s < p.splits ? __ldcg(from + (first_record + s) * (kRecord / 4))
                                                : make_float4(0, 0, 0, 0);
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s) add(weights[first_record + s][i / (kDim / 4)], values[s], total);
    }
    store(i, total);
  }
}

}  // namespace

KvWorkspace::KvWorkspace(int rows, int query_heads, int head_dim) : processors(gpu_processors()) {
  // Sequences are split only until the CTAs fill the GPU, eight an SM at most.
  partial =
      DeviceBuffer<float>(static_cast<size_t>(processors) * 8 * kHeads * static_cast<size_t>(head_dim + 2));
  arrived = DeviceBuffer<int>(static_cast<size_t>(rows) * static_cast<size_t>(query_heads));
}

bool kv4_decode_fits(const DeviceKvLayout& layout, int heads) {
  const int dim = layout.head_dim;
  return layout.bits == 4 && layout.groups() == 1 && (dim == 64 || dim == 128 || dim == 256) &&
         layout.kv_heads > 0 && heads % layout.kv_heads == 0 && heads > 0 &&
         heads / layout.kv_heads <= kHeads;
}

void kv4_decode_attention(const DeviceKvLayout& layout, const uint8_t* pages, const KvRows& rows,
                          const KvAttention& attention, KvWorkspace& workspace, cudaStream_t stream) {
  require(
      kv4_decode_fits(layout, attention.heads),
      "KV4 attention: {} query heads over {} kv heads of {} columns ({} bits, {} groups); it takes 1 to {} "
      "each, heads of 64, 128 or 256 columns, 4 bits and one group",
      attention.heads, layout.kv_heads, layout.head_dim, layout.bits, layout.groups(), kHeads);
  if (rows.rows == 0) return;
  const int pairs = rows.rows * layout.kv_heads;
  // As many CTAs as run at once, but at least two tiles a warp each.
  const int slots = workspace.processors * (layout.head_dim == 256 ? 2 : 4);
  const int length =
      attention.window > 0 ? std::min(attention.max_length, attention.window) : attention.max_length;
  const int splits = std::clamp(std::min(slots / pairs, length / (2 * kWarps * kTile)), 1, kMaxSplits);
  const AttentionParams params{layout,
                               pages,
                               rows,
                               attention,
                               attention.heads / layout.kv_heads,
                               splits,
                               workspace.partial.data(),
                               workspace.arrived.data()};
  require(static_cast<size_t>(pairs) <= workspace.arrived.size() &&
              (splits == 1 || static_cast<size_t>(pairs) * static_cast<size_t>(splits) *
                                      static_cast<size_t>(kHeads * (layout.head_dim + 2)) <=
                                  workspace.partial.size()),
          "KV4 attention: {} rows exceed the workspace", rows.rows);
  const auto kernel = layout.head_dim == 64    ? attention_kernel<64>
                      : layout.head_dim == 128 ? attention_kernel<128>
                                               : attention_kernel<256>;
  launch_dependent(kernel, static_cast<unsigned>(pairs * splits), kWarps * 32, 0, stream, "KV4 attention",
                   params);
}

}  // namespace quatrain::ops
