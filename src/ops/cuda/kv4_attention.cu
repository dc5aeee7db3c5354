// Decode attention over 4-bit pages. A sequence is split over CTAs; their partial results meet through the
// shared memory of a cluster, before compute capability 9.0 through memory.
#include <algorithm>
#include <bit>

#include "ops/cuda/dependent_launch.h"
#include "ops/cuda/gpu.h"
#include "ops/cuda/kv4_decode.h"
#include "ops/cuda/kv4_tile.cuh"
#include "ops/cuda/kv_store.cuh"
#include "ops/cuda/ptx/launch.cuh"
#include "ops/cuda/ptx/shared_memory.cuh"
#include "ops/cuda/rotate_head.cuh"

namespace quatrain::ops {
namespace {

using kv4::as_bits;
using kv4::attend;
using kv4::kBoost;
using kv4::kHeads;
using kv4::kTile;
using kv4::State;
using kv4::Tile;

constexpr int kWarps = 4;
constexpr int kMaxSplits = 64;
constexpr int kMaxCluster = 8;    // CTAs that meet through shared memory
constexpr int kLeastCluster = 4;  // that is faster than meeting through memory
constexpr int kClusterTiles = 4;  // of a warp at most; longer sequences are worth more CTAs

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
  KvRows rows;
  KvAttention attention;
  int group;  // query heads of a kv head
  int splits;
  float* partial;  // [row, kv head, split][kHeads * (head_dim + 2)]
  int* arrived;
  bool rotates;  // q, and stores k and v
  HeadRotation rotation;
  uint8_t* stored;  // the pages
  unsigned long long* bad;
  AttentionCodes codes;
};

// The query heads of a kv head, turned, into rotated [kHeads][kDim]; with `stores`, the row's key and value
// into the page as well. A warp a head.
template <int kDim>
__device__ void rotate(const AttentionParams& p, int batch_row, int head, const int32_t* table, int length,
                       bool stores, float* rotated) {
  const int lane = threadIdx.x % 32;
  const float* row = p.attention.q + batch_row * p.attention.q_stride;
  for (int item = threadIdx.x / 32; item < p.group + (stores ? 2 : 0); item += kWarps) {
    const bool query = item < p.group;
    if (query) {
      const int query_head = head * p.group + item;
      rotate_head(p.rotation, batch_row, true, row + query_head * kDim, rotated + item * kDim, lane);
      continue;
    }
    const int which = item - p.group, kv_heads = p.layout.kv_heads, slot = (length - 1) % kKvPageTokens;
    const float* x = row + (p.attention.heads + which * kv_heads + head) * kDim;
    if (which == 0) {
      float* key = rotated + kHeads * kDim;
      rotate_head(p.rotation, batch_row, false, x, key, lane);
      x = key;
    }
    uint8_t* page = p.stored + p.layout.at(table[(length - 1) / kKvPageTokens], head);
    if (!store_head(p.layout, page, which, slot, x, lane) && p.bad != nullptr)
      atomicMin(p.bad, static_cast<unsigned long long>(batch_row * kv_heads + head));
  }
}

__device__ __forceinline__ void add(float weight, float4 value, float4& to) {
  to.x = fmaf(weight, value.x, to.x);
  to.y = fmaf(weight, value.y, to.y);
  to.z = fmaf(weight, value.z, to.z);
  to.w = fmaf(weight, value.w, to.w);
}

// Vector `vector` of a kv head's queries, four columns, into memory, as codes or as it is. Whole warps call
// it.
__device__ __forceinline__ void store(const AttentionParams& p, int batch_row, int head, int vector,
                                      float4 value) {
  const int dim = p.layout.head_dim, column = head * p.group * dim + vector * 4;
  const bool active = vector * 4 < p.group * dim;
  if (p.codes.codes != nullptr) {
    float x[4] = {value.x, value.y, value.z, value.w};
    const AttentionCodes& to = p.codes;
    quad_codes(x, to.row, batch_row, column, active, [&](const StoredGroup& group, uint32_t codes) {
      if (column % to.row.group == 0) {
        const int64_t at = column / to.row.group * to.token_stride + batch_row;
        to.scale[at] = group.scale;
        to.zero[at] = group.zero;
      }
      *reinterpret_cast<uint32_t*>(to.codes + batch_row * to.stride + column) = codes;
    });
  } else if (active) {
    float* to = p.attention.out + batch_row * p.attention.out_stride + column;
    to[0] = value.x, to[1] = value.y, to[2] = value.z, to[3] = value.w;
  }
}

#if __CUDA_ARCH__ >= 900
// Vector `vector` of the cluster's CTAs together. `merged`: each one's vectors, sums and largest scores in
// its shared memory.
template <int kDim>
__device__ float4 gather(const AttentionParams& p, const float* merged, int vector) {
  const int query = min(vector / (kDim / 4), p.group - 1);
  const uint32_t base = ptx::shared_address(merged);
  float4 total = make_float4(0, 0, 0, 0);
  float largest = -1e30f, sum = 0;
  constexpr int kAtOnce = 8;
  for (int first = 0; first < p.splits; first += kAtOnce) {
    float4 values[kAtOnce];
    float sums[kAtOnce], maxima[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint32_t from = ptx::cluster_address(base, min(first + i, p.splits - 1));
      maxima[i] = ptx::load_cluster(from + 4 * (kHeads * (kDim + 1) + query));
      sums[i] = ptx::load_cluster(from + 4 * (kHeads * kDim + query));
      values[i] = ptx::load_cluster_vector(from + 16 * vector);
    }
    float top = largest;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) top = fmaxf(top, maxima[i]);
    const float fade = exp2f(largest - top);
    largest = top;
    sum *= fade;
    total = make_float4(total.x * fade, total.y * fade, total.z * fade, total.w * fade);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float weight = first + i < p.splits ? exp2f(maxima[i] - top) : 0.0f;
      sum = fmaf(weight, sums[i], sum);
      add(weight, values[i], total);
    }
  }
  return make_float4(total.x / sum, total.y / sum, total.z / sum, total.w / sum);
}
#endif

// One CTA a (row, kv head, split), splits being a cluster with kCluster; its warps take every fourth tile.
template <int kDim, bool kCluster>
__global__ void __launch_bounds__(kWarps * 32, kDim == 256 ? 2 : 4)
    attention_kernel(const __grid_constant__ AttentionParams p) {
  constexpr int kRecord = kHeads * (kDim + 2);
  __shared__ __align__(16) float shared[kWarps][kRecord];
  static_assert(kRecord % 4 == 0);
  __shared__ float weights[kMaxSplits][kHeads];
  __shared__ bool is_last;
  ptx::allow_next_kernel();
  if (!p.rotates) ptx::wait_for_previous_kernel();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int split = blockIdx.x % p.splits, pair = blockIdx.x / p.splits;
  const int head = pair % p.layout.kv_heads, batch_row = pair / p.layout.kv_heads;
  const int length = p.rows.lengths[batch_row];
  const int32_t* table = p.rows.pages_of(batch_row);
  const int begin = p.attention.window > 0 ? max(0, length - p.attention.window) : 0;
  const int begin_tile = begin / kTile, tiles = (length + kTile - 1) / kTile - begin_tile;
  const int first = begin_tile + static_cast<int>(static_cast<int64_t>(tiles) * split / p.splits);
  const int last = begin_tile + static_cast<int>(static_cast<int64_t>(tiles) * (split + 1) / p.splits);

  // Two tiles are always on their way. Rows that store their own key are each the newest token of a sequence:
  // all pages but that token's place are from earlier passes, and need not wait for the kernel before.
  const int newest = (length - 1) / kTile;
  Tile<kDim> a, b;
  int tile = first + warp;
  const auto load_first = [&](bool early) {
    const auto ready = [&](int t) { return t < last && (p.rotates && t != newest) == early; };
    if (ready(tile)) a.load(p.layout, p.pages, table, head, tile * kTile, lane);
    if (ready(tile + kWarps)) b.load(p.layout, p.pages, table, head, (tile + kWarps) * kTile, lane);
  };
  load_first(true);
  float* rotated = &shared[0][0];
  static_assert(kWarps * kRecord >= (kHeads + 1) * kDim);
  if (p.rotates) {
    prefetch_rotation(p.rotation, batch_row);
    ptx::wait_for_previous_kernel();
    rotate<kDim>(p, batch_row, head, table, length, first <= newest && newest < last, rotated);
    __syncthreads();
  }

  // Key columns of lane c = lane % 4: a quarter; word w's nibbles 0 ... 7 are columns 8 w ... 8 w + 7 of it.
  uint32_t q[kDim / 16][2];
  float q_sums[2] = {0, 0};
  {
    const int query = lane / 4;
    const int row = min(query, p.group - 1);
    const float* from =
        p.rotates ? rotated + row * kDim
                  : p.attention.q + batch_row * p.attention.q_stride + (head * p.group + row) * kDim;
    from += lane % 4 * (kDim / 4);
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
  if (p.rotates) __syncthreads();  // before records take q's place
  load_first(false);
  const float scale = p.attention.scale * 1.44269504f;  // exp2
  for (; tile < last; tile += 2 * kWarps) {
    attend<kDim>(a, q, q_sums, scale, begin - tile * kTile, length - tile * kTile, lane, state);
    if (tile + 2 * kWarps < last) a.load(p.layout, p.pages, table, head, (tile + 2 * kWarps) * kTile, lane);
    if (tile + kWarps >= last) break;
    attend<kDim>(b, q, q_sums, scale, begin - (tile + kWarps) * kTile, length - (tile + kWarps) * kTile, lane,
                 state);
    if (tile + 3 * kWarps < last) b.load(p.layout, p.pages, table, head, (tile + 3 * kWarps) * kTile, lane);
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
  const int vectors = p.group * (kDim / 4), padded = (vectors + 31) / 32 * 32;
  float* own = kCluster ? shared[0] : p.partial + static_cast<int64_t>(blockIdx.x) * kRecord;
  for (int i = threadIdx.x; i < padded; i += kWarps * 32) {
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
      store(p, batch_row, head, i, make_float4(total.x / sum, total.y / sum, total.z / sum, total.w / sum));
      continue;
    }
    if (i >= vectors) continue;
    reinterpret_cast<float4*>(own)[i] = total;  // of shared[0], no other thread reads it
    if (i % (kDim / 4) == 0) {
      float* scalars = kCluster ? weights[0] : own + kHeads * kDim;
      scalars[query] = sum;
      scalars[kHeads + query] = largest;
    }
  }
  if (p.splits == 1) return;
  if constexpr (kCluster) {
#if __CUDA_ARCH__ >= 900
    __syncthreads();
    if (threadIdx.x < 2 * kHeads) own[kHeads * kDim + threadIdx.x] = weights[0][threadIdx.x];
    ptx::cluster_sync();
    for (int block = split + p.splits * warp; block < padded / 32; block += p.splits * kWarps)
      store(p, batch_row, head, block * 32 + lane, gather<kDim>(p, own, block * 32 + lane));
    ptx::cluster_sync();  // the others may still read
#endif
    return;
  }
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
  for (int i = threadIdx.x; i < padded; i += kWarps * 32) {
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
    store(p, batch_row, head, i, total);
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

bool kv4_decode_makes_codes(const DeviceKvLayout& layout, int heads, const RowOptions& options,
                            const DeviceActivations& codes) {
  const int64_t columns = int64_t{heads / layout.kv_heads} * layout.head_dim;
  return options.gain == nullptr && options.hadamard == 0 &&
         (codes.group == 32 || codes.group == 64 || codes.group == 128) && columns % codes.group == 0 &&
         codes.width == int64_t{heads} * layout.head_dim;
}

void kv4_decode_attention(const DeviceKvLayout& layout, const uint8_t* pages, const KvRows& rows,
                          const KvAttention& attention, KvWorkspace& workspace, cudaStream_t stream,
                          const KvDecodeStep& step) {
  require(
      kv4_decode_fits(layout, attention.heads),
      "KV4 attention: {} query heads over {} kv heads of {} columns ({} bits, {} groups); it takes 1 to {} "
      "each, heads of 64, 128 or 256 columns, 4 bits and one group",
      attention.heads, layout.kv_heads, layout.head_dim, layout.bits, layout.groups(), kHeads);
  if (rows.rows == 0) return;
  const int pairs = rows.rows * layout.kv_heads;
  const int length =
      attention.window > 0 ? std::min(attention.max_length, attention.window) : attention.max_length;
  const int shortest = length / (2 * kWarps * kTile);  // splits whose warps have two tiles each
  // Clusters pay while their CTAs have SMs of their own (docs/measurements/gpu.md).
  const int cluster_slots =
      gpu_kernels() == GpuKernels::Wgmma && length <= kMaxCluster * kClusterTiles * kWarps * kTile
          ? std::min(workspace.processors / pairs, kMaxCluster)
          : 0;
  const bool clusters = std::min(cluster_slots, shortest) >= kLeastCluster;
  // Else as many CTAs as run at once.
  const int slots = workspace.processors * (layout.head_dim == 256 ? 2 : 4);
  const int splits =
      clusters ? static_cast<int>(std::bit_floor(static_cast<unsigned>(std::min(cluster_slots, shortest))))
               : std::clamp(std::min(slots / pairs, shortest), 1, kMaxSplits);
  AttentionParams params{};
  params.layout = layout;
  params.pages = pages;
  params.rows = rows;
  params.attention = attention;
  params.group = attention.heads / layout.kv_heads;
  params.splits = splits;
  params.partial = workspace.partial.data();
  params.arrived = workspace.arrived.data();
  if (step.rotation != nullptr) {
    params.rotates = true;
    params.rotation = *step.rotation;
    params.stored = step.pages;
    params.bad = step.bad;
  }
  if (step.codes != nullptr) {
    DeviceActivations& codes = *step.codes;
    require(kv4_decode_makes_codes(layout, attention.heads, step.options, codes),
            "KV4 attention: no codes in groups of {} columns of {} heads of {}", codes.group, attention.heads,
            layout.head_dim);
    codes.tokens = rows.rows;
    params.codes = {codes.codes.data(), codes.scale.data(),
                    codes.zero.data(),  codes.stride,
                    codes.token_stride, row_params(step.options, codes.width, codes.group, codes.groups)};
  }
  require(static_cast<size_t>(pairs) <= workspace.arrived.size() &&
              (splits == 1 || static_cast<size_t>(pairs) * static_cast<size_t>(splits) *
                                      static_cast<size_t>(kHeads * (layout.head_dim + 2)) <=
                                  workspace.partial.size()),
          "KV4 attention: {} rows exceed the workspace", rows.rows);
  const unsigned grid = static_cast<unsigned>(pairs * splits);
  if (!clusters) {
    const auto kernel = layout.head_dim == 64    ? attention_kernel<64, false>
                        : layout.head_dim == 128 ? attention_kernel<128, false>
                                                 : attention_kernel<256, false>;
    return launch_dependent(kernel, grid, kWarps * 32, 0, stream, "KV4 attention", params);
  }
  const auto kernel = layout.head_dim == 64    ? attention_kernel<64, true>
                      : layout.head_dim == 128 ? attention_kernel<128, true>
                                               : attention_kernel<256, true>;
  launch_clusters(kernel, grid, static_cast<unsigned>(splits), kWarps * 32, 0, stream, "KV4 attention",
                  params);
}

}  // namespace quatrain::ops
