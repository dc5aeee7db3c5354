// What the decode attention over 4-bit pages is told, and how a CTA gets its queries ready: heads turned,
// keys and values stored, queries as signed bytes.
#pragma once

#include "ops/cuda/kv4_tile.cuh"
#include "ops/cuda/kv_store.cuh"
#include "ops/cuda/rotate_head.cuh"

namespace quatrain::ops::kv4 {

// Codes of the output; a warp makes 128 columns at a time.
struct AttentionCodes {
  int8_t* codes;  // or null
  float* scale;
  int32_t* zero;
  int64_t stride, token_stride;
  RowParams row;
};

struct AttentionParams {
  DeviceKvLayout layout;
  const uint8_t* pages;
  int64_t page_stride, head_offset, head_bytes;  // of the layout
  KvRows rows;
  KvAttention attention;
  int group;  // query heads of a kv head
  int splits;
  bool clusters;   // of `splits` CTAs
  float* partial;  // [row, kv head, split][kHeads * (head_dim + 2)]
  int* arrived;
  bool rotates;  // q, and stores k and v
  HeadRotation rotation;
  uint8_t* stored;  // the pages
  unsigned long long* bad;
  AttentionCodes codes;
};

// What the warps of a CTA tell each other.
template <int kDim>
struct Prepared {
  __align__(16) int8_t high[kHeads][kDim], low[kHeads][kDim];  // 256 * high + low: a query head's columns
  float scale[kHeads], sum[kHeads];
  uint32_t newest[2][kDim / 8 + 4];  // key and value of the row's own token: codes, scale and zero
};

// A query head's columns kColumns * lane ... into 16 bits, two signed bytes each, of the largest. Those of a
// head with a value that is not finite get a scale of NaN.
template <int kDim>
__device__ __forceinline__ void prepare_query(const float (&x)[kDim / 32], int head, float scale, int lane,
                                              Prepared<kDim>& to) {
  constexpr int kColumns = kDim / 32;
  constexpr float kLargest = 32000.0f;
  float largest = 0;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    largest = fmaxf(largest, fabsf(x[i]));
    finite = finite && isfinite(x[i]);
  }
  finite = __all_sync(~0u, finite);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
  const float factor = largest > 1e-30f && finite ? __fdividef(kLargest, largest) : 0.0f;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int q = __float2int_rn(x[i] * factor), high = (q + 128) >> 8;
    sum += q;
    to.high[head][kColumns * lane + i] = static_cast<int8_t>(high);
    to.low[head][kColumns * lane + i] = static_cast<int8_t>(q - 256 * high);
  }
  sum = __reduce_add_sync(~0u, sum);
  if (lane == 0) {
    to.scale[head] = finite ? scale * largest * (1 / kLargest) : NAN;
    to.sum[head] = static_cast<float>(sum);
  }
}

// The query heads of a kv head, turned where p.rotates; with `stores`, the row's key and value into the page
// as well. A warp a head.
template <int kDim, int kWarps>
__device__ __forceinline__ void prepare(const AttentionParams& p, int batch_row, int head,
                                        const int32_t* table, int length, bool stores,
                                        const HeadFactors<kDim / 32>& factors, Prepared<kDim>& to) {
  constexpr int kColumns = kDim / 32;
  const int lane = threadIdx.x % 32, items = p.group + (stores ? 2 : 0);
  const float* row = p.attention.q + batch_row * p.attention.q_stride + kColumns * lane;
  const auto load = [&](int item, float(&x)[kColumns]) {
    if (item >= items) return;
    const int at = item < p.group ? head * p.group + item
                                  : p.attention.heads + (item - p.group) * p.layout.kv_heads + head;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) x[i] = row[at * kDim + i];
  };
  float x[kColumns], next[kColumns];
  load(threadIdx.x / 32, x);
  for (int item = threadIdx.x / 32; item < items; item += kWarps) {
    load(item + kWarps, next);
    const int which = item - p.group;
    if (p.rotates && which < 1) rotate_columns(p.rotation, factors, which < 0, x, lane);
    if (which < 0) {
      prepare_query<kDim>(x, item, p.attention.scale * 1.44269504f, lane, to);  // for powers of 2
    } else {
      uint8_t* page = p.stored + table[(length - 1) / kKvPageTokens] * p.page_stride + p.head_offset +
                      head * p.head_bytes;
      if (!store_columns(p.layout, page, which, (length - 1) % kKvPageTokens, x, lane,
                         reinterpret_cast<uint8_t*>(to.newest[which])) &&
          p.bad != nullptr)
        atomicMin(p.bad, static_cast<unsigned long long>(batch_row * p.layout.kv_heads + head));
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) x[i] = next[i];
  }
}

// The lane's part of the queries.
template <int kDim>
__device__ __forceinline__ void load_queries(const Prepared<kDim>& from, int group, int lane,
                                             Queries<kDim>& q) {
  const int head = min(lane / 4, group - 1), column = lane % 4 * (kDim / 4);
  const bool used = lane / 4 < group;
  const auto load = [&](const int8_t* codes, uint32_t(&to)[kDim / 32][2]) {
    const auto* words = reinterpret_cast<const uint2*>(codes + column);
#pragma unroll
    for (int w = 0; w < kDim / 32; ++w) {
      const uint2 x = words[w];
      to[w][0] = used ? __byte_perm(x.x, x.y, 0x6420) : 0;
      to[w][1] = used ? __byte_perm(x.x, x.y, 0x7531) : 0;
    }
  };
  load(from.high[head], q.high);
  load(from.low[head], q.low);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int of = lane % 4 * 2 + h;
    q.scale[h] = of < group ? from.scale[of] : 0.0f;
    q.sum[h] = of < group ? from.sum[of] : 0.0f;
  }
}

}  // namespace quatrain::ops::kv4
