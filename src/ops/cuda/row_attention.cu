// Attention of single tokens over pages of any layout: one warp a token of the cache, a lane a run of
// columns.
#include <cuda_fp16.h>

#include <algorithm>

#include "ops/cuda/kv_pages.h"

namespace quatrain::ops {
namespace {

constexpr int kWarps = 4;
constexpr int kTokens = 4;  // that a warp has in flight
constexpr int kMaxSplits = 64;

struct RowParams {
  DeviceKvLayout layout;
  const uint8_t* pages;
  KvRows rows;
  KvAttention attention;
  int group;        // query heads of a kv head
  int head_blocks;  // CTAs that share them
  int splits;
  float* partial;  // [row, kv head, head block, split][kHeads * (head_dim + 2)]
};

// Columns [first, first + kColumns) of one token, zero past the head.
template <int kColumns>
__device__ __forceinline__ void read_columns(const DeviceKvLayout& layout, const uint8_t* head, int which,
                                             int slot, int first, float (&x)[kColumns]) {
  const uint8_t* codes = head + which * layout.codes_bytes() + slot * layout.token_bytes();
  if (layout.bits == 16) {
    const auto* halves = reinterpret_cast<const __half*>(codes) + first;
    if (kColumns == 4 && layout.head_dim == 128) {
      const uint2 v = __ldcs(reinterpret_cast<const uint2*>(halves));
      const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&v.x)),
                   b = __half22float2(*reinterpret_cast<const __half2*>(&v.y));
      x[0] = a.x;
      if constexpr (kColumns == 4) x[1] = a.y, x[2] = b.x, x[3] = b.y;
      return;
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) x[i] = first + i < layout.head_dim ? __half2float(halves[i]) : 0.0f;
    return;
  }
  const int width = layout.group_columns(), groups = layout.groups();
  const auto* pairs = reinterpret_cast<const uint32_t*>(head + 2 * layout.codes_bytes()) +
                      (which * kKvPageTokens + slot) * groups;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = first + i;
    x[i] = 0.0f;
    if (column >= layout.head_dim) continue;
    const uint32_t pair = pairs[groups == 1 ? 0 : column / width];
    const int code = layout.bits == 8 ? codes[column] : codes[column / 2] >> (column % 2 * 4) & 15;
    x[i] = __half2float(__ushort_as_half(static_cast<unsigned short>(pair))) *
           static_cast<float>(code - (static_cast<int32_t>(pair) >> 16));
  }
}

template <int kColumns, int kHeads>
__global__ void __launch_bounds__(kWarps * 32) row_kernel(const __grid_constant__ RowParams p) {
  const int dim = p.layout.head_dim, record = kHeads * (dim + 2);
  extern __shared__ float shared[];  // [kWarps][record]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int split = blockIdx.x % p.splits, block = blockIdx.x / p.splits % p.head_blocks;
  const int pair = blockIdx.x / (p.splits * p.head_blocks);
  const int head = pair % p.layout.kv_heads, row = pair / p.layout.kv_heads;
  const int length = p.rows.lengths[row];
  const int32_t* table = p.rows.pages_of(row);
  const int begin = p.attention.window > 0 ? max(0, length - p.attention.window) : 0;
  const int first = begin + static_cast<int>(static_cast<int64_t>(length - begin) * split / p.splits);
  const int last = begin + static_cast<int>(static_cast<int64_t>(length - begin) * (split + 1) / p.splits);
  const int column = lane * kColumns;
  const int heads = min(kHeads, p.group - block * kHeads);
  const int query = head * p.group + block * kHeads;

  float q[kHeads][kColumns], out[kHeads][kColumns], largest[kHeads], sum[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    largest[h] = -1e30f;
    sum[h] = 0;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const bool inside = h < heads && column + i < dim;
      q[h][i] = inside ? p.attention.q[row * p.attention.q_stride + (query + h) * dim + column + i] *
                             (p.attention.scale * 1.44269504f)
                       : 0.0f;
      out[h][i] = 0;
    }
  }
  for (int token = first + warp * kTokens; token < last; token += kWarps * kTokens) {
    float score[kTokens][kHeads], x[kTokens][kColumns];
    const uint8_t* at[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const int index = min(token + t, last - 1);
      at[t] = p.pages + p.layout.at(table[index / kKvPageTokens], head);
      read_columns<kColumns>(p.layout, at[t], 0, index % kKvPageTokens, column, x[t]);
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float dot = 0;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) dot = fmaf(q[h][i], x[t][i], dot);
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) dot += __shfl_xor_sync(~0u, dot, distance);
        score[t][h] = token + t < last ? dot : -INFINITY;
      }
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
      read_columns<kColumns>(p.layout, at[t], 1, min(token + t, last - 1) % kKvPageTokens, column, x[t]);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float top = largest[h];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) top = fmaxf(top, score[t][h]);
      const float fade = exp2f(largest[h] - top);
      largest[h] = top;
      sum[h] *= fade;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) out[h][i] *= fade;
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const float weight = exp2f(score[t][h] - top);
        sum[h] += weight;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) out[h][i] = fmaf(weight, x[t][i], out[h][i]);
      }
    }
  }
  float* own = shared + warp * record;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
      if (column + i < dim) own[h * dim + column + i] = out[h][i];
    if (lane == 0) {
      own[kHeads * dim + h] = sum[h];
      own[kHeads * (dim + 1) + h] = largest[h];
    }
  }
  __syncthreads();
  float* partial = p.partial + static_cast<int64_t>(blockIdx.x) * record;
  for (int i = threadIdx.x; i < heads * dim; i += kWarps * 32) {
    const int h = i / dim;
    float top = -1e30f, total = 0, weights = 0;
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, shared[w * record + kHeads * (dim + 1) + h]);
    for (int w = 0; w < kWarps; ++w) {
      const float weight = exp2f(shared[w * record + kHeads * (dim + 1) + h] - top);
      total += weight * shared[w * record + i];
      weights += weight * shared[w * record + kHeads * dim + h];
    }
    if (p.splits == 1) {
      p.attention.out[row * p.attention.out_stride + query * dim + i] = total / weights;
      continue;
    }
    partial[i] = total;
    if (i % dim == 0) {
      partial[kHeads * dim + h] = weights;
      partial[kHeads * (dim + 1) + h] = top;
    }
  }
}

// Adds the splits of a (row, kv head, head block) in order.
__global__ void merge_kernel(const __grid_constant__ RowParams p, int block_heads) {
  const int dim = p.layout.head_dim, record = block_heads * (dim + 2);
  const int block = blockIdx.x % p.head_blocks, pair = blockIdx.x / p.head_blocks;
  const int head = pair % p.layout.kv_heads, row = pair / p.layout.kv_heads;
  const int heads = min(block_heads, p.group - block * block_heads);
  const float* records = p.partial + static_cast<int64_t>(blockIdx.x) * p.splits * record;
  for (int i = threadIdx.x; i < heads * dim; i += blockDim.x) {
    const int h = i / dim;
    float top = -1e30f, total = 0, weights = 0;
#pragma unroll 8  // independent loads
    for (int s = 0; s < p.splits; ++s) top = fmaxf(top, records[s * record + block_heads * (dim + 1) + h]);
#pragma unroll 8  // independent loads
    for (int s = 0; s < p.splits; ++s) {
      const float weight = exp2f(records[s * record + block_heads * (dim + 1) + h] - top);
      total += weight * records[s * record + i];
      weights += weight * records[s * record + block_heads * dim + h];
    }
    p.attention.out[row * p.attention.out_stride + (head * p.group + block * block_heads) * dim + i] =
        total / weights;
  }
}

template <int kHeads>
auto kernel_of(int dim) {
  return dim <= 32    ? row_kernel<1, kHeads>
         : dim <= 64  ? row_kernel<2, kHeads>
         : dim <= 128 ? row_kernel<4, kHeads>
                      : row_kernel<8, kHeads>;
}

}  // namespace

void row_attention(const DeviceKvLayout& layout, const uint8_t* pages, const KvRows& rows,
                   const KvAttention& attention, KvWorkspace& workspace, cudaStream_t stream) {
  require(layout.head_dim > 0 && layout.head_dim <= 256 && layout.kv_heads > 0 &&
              attention.heads % layout.kv_heads == 0,
          "GPU attention: {} query heads over {} kv heads of {} columns; it takes heads of up to 256 columns",
          attention.heads, layout.kv_heads, layout.head_dim);
  if (rows.rows == 0) return;
  const int group = attention.heads / layout.kv_heads, block_heads = group <= 1 ? 1 : 4;
  const int head_blocks = (group + block_heads - 1) / block_heads;
  const int ctas = rows.rows * layout.kv_heads * head_blocks;
  const int length =
      attention.window > 0 ? std::min(attention.max_length, attention.window) : attention.max_length;
  const auto record = static_cast<size_t>(block_heads * (layout.head_dim + 2));
  const auto room = static_cast<int>(
      std::min<size_t>(workspace.partial.size() / (static_cast<size_t>(ctas) * record), kMaxSplits));
  const int splits =
      std::clamp(std::min({workspace.processors * 8 / ctas, length / 64, room}), 1, kMaxSplits);
  const RowParams params{layout, pages,       rows,   attention,
                         group,  head_blocks, splits, workspace.partial.data()};
  const auto kernel = block_heads == 1 ? kernel_of<1>(layout.head_dim) : kernel_of<4>(layout.head_dim);
  kernel<<<static_cast<unsigned>(ctas * splits), kWarps * 32, kWarps * record * sizeof(float), stream>>>(
      params);
  cuda_check(cudaGetLastError(), "attention");
  if (splits == 1) return;
  merge_kernel<<<static_cast<unsigned>(ctas), 512, 0, stream>>>(params, block_heads);
  cuda_check(cudaGetLastError(), "merging attention");
}

}  // namespace quatrain::ops
