// Decode attention over 4-bit pages. A sequence is split over CTAs; their partial results meet through the
// shared memory of a cluster, before compute capability 9.0 through memory.
#include <algorithm>
#include <bit>

#include "ops/cuda/dependent_launch.h"
#include "ops/cuda/gpu.h"
#include "ops/cuda/kv4_decode.h"
#include "ops/cuda/kv4_queries.cuh"
#include "ops/cuda/ptx/launch.cuh"
#include "ops/cuda/ptx/mbarrier.cuh"
#include "ops/cuda/ptx/shared_memory.cuh"

namespace quatrain::ops {
namespace {

using kv4::AttentionCodes;
using kv4::AttentionParams;
using kv4::kBoost;
using kv4::kHeads;
using kv4::kUnit;
using kv4::load_queries;
using kv4::power_of_two;
using kv4::prepare;
using kv4::Prepared;
using kv4::Queries;
using kv4::State;
using kv4::Unit;

constexpr int kNarrow = 4;  // warps of a CTA that leaves room on its SM for others
constexpr int kMaxSplits = 64;
constexpr int kMaxCluster = 8;      // CTAs that meet through shared memory
constexpr int kNarrowUnits = 4;     // of a narrow CTA's warp at most, where wide ones have SMs of their own
constexpr int kClusterBlocks = 16;  // of 32 vectors, that a CTA of a cluster may be sent

// Of CTAs that fill an SM: 16 warps of 128 registers.
template <int kDim>
inline constexpr int kWide = kDim == 256 ? 8 : 16;
// Floats of a head in a warp's record, columns in an order and at a pitch that keep banks apart.
template <int kDim>
inline constexpr int kRecordPitch = kDim + kDim / 4 + 4;

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
      if (to.row.opens(column)) {
        const int64_t at = (column >> to.row.group_shift) * to.token_stride + batch_row;
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

// A vector of parts that lie side by side: parts of a sequence, weighed by their largest scores.
struct Part {
  float4 total = {0, 0, 0, 0};
  float sum = 0, largest = -1e30f;

  __device__ __forceinline__ float4 result() const {
    return make_float4(total.x / sum, total.y / sum, total.z / sum, total.w / sum);
  }
};

// Where CTAs do not meet in clusters: their parts of a sequence go through memory, and the last to arrive
// adds them up. merge_warps(vector) is the CTA's own part.
template <int kDim, typename MergeWarps>
__device__ void meet_in_memory(const AttentionParams& p, int batch_row, int head, int pair,
                               const MergeWarps& merge_warps) {
  constexpr int kRecord = kHeads * (kDim + 2);
  __shared__ float weights[kMaxSplits][kHeads];
  __shared__ bool is_last;
  const int vectors = p.group * (kDim / 4), padded = (vectors + 31) / 32 * 32;
  float* own = p.partial + static_cast<int64_t>(blockIdx.x) * kRecord;
  for (int i = threadIdx.x; i < vectors; i += kNarrow * 32) {
    const Part part = merge_warps(i);
    reinterpret_cast<float4*>(own)[i] = part.total;
    if (i % (kDim / 4) != 0) continue;
    own[kHeads * kDim + i / (kDim / 4)] = part.sum;
    own[kHeads * (kDim + 1) + i / (kDim / 4)] = part.largest;
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
    static_assert(kNarrow * 32 == kHeads * 16);
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
  for (int i = threadIdx.x; i < padded; i += kNarrow * 32) {
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

// One CTA a (row, kv head, split); its warps take every kWarps-th unit. Splits meet in clusters, or in
// memory.
template <int kDim, int kWarps, bool kClusters>
__global__ void __launch_bounds__(kWarps * 32, (kDim == 256 ? 8 : 16) / kWarps)
    attention_kernel(const __grid_constant__ AttentionParams p) {
#if __CUDA_ARCH__ < 900
  if constexpr (kClusters) return;
#endif
  constexpr int kPitch = kRecordPitch<kDim>;
  extern __shared__ __align__(16) float records[];  // [kWarps][group][kPitch], then what a cluster sends
  __shared__ Prepared<kDim> prepared;
  __shared__ float sums[kWarps][kHeads], maxima[kWarps][kHeads];
  ptx::allow_next_kernel();
  const int vectors = p.group * (kDim / 4), blocks = (vectors + 31) / 32;
  // What a CTA of a cluster is sent: every CTA's part of each of its blocks of 32 vectors.
  __shared__ uint64_t arrival;
  const uint32_t arrived = ptx::shared_address(&arrival);
  if (kClusters && p.splits > 1) {
    if (threadIdx.x == 0) {
      const int own_blocks = (blocks - static_cast<int>(blockIdx.x) % p.splits + p.splits - 1) / p.splits;
      ptx::barrier_init(arrived, 1);
      ptx::fence_barrier_init();
      ptx::barrier_arrive_expect(arrived, own_blocks * p.splits * 32 * (sizeof(float4) + sizeof(float2)));
    }
    __syncwarp();
    ptx::cluster_arrive_relaxed();
  }
  if (!p.rotates) ptx::wait_for_previous_kernel();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int split = blockIdx.x % p.splits, pair = blockIdx.x / p.splits;
  const int head = pair % p.layout.kv_heads, batch_row = pair / p.layout.kv_heads;
  const int length = p.rows.lengths[batch_row];
  const int32_t* table = p.rows.pages_of(batch_row);
  const int begin = p.attention.window > 0 ? max(0, length - p.attention.window) : 0;
  const int begin_unit = begin / kUnit, units = (length + kUnit - 1) / kUnit - begin_unit;
  const int first = begin_unit + static_cast<int>(static_cast<int64_t>(units) * split / p.splits);
  const int last = begin_unit + static_cast<int>(static_cast<int64_t>(units) * (split + 1) / p.splits);

  // Rows that store their own key are each the newest token of a sequence: all pages but that token's place
  // are from earlier passes, and need not wait for the kernel before.
  const int64_t within = p.head_offset + head * p.head_bytes;
  const auto page_of = [&](int unit) {
    return p.pages + __ldg(table + unit * kUnit / kKvPageTokens) * p.page_stride + within;
  };
  Unit<kDim> now;
  int unit = first + warp;
  if (unit < last) {
    const uint8_t* at = page_of(unit);
    now.load_keys(at, unit * kUnit % kKvPageTokens, lane);
    now.load_values(at, unit * kUnit % kKvPageTokens, lane);
  }
  HeadFactors<kDim / 32> factors;
  const int newest = (length - 1) / kUnit;
  if (p.rotates) {
    factors.load(p.rotation, batch_row, lane);
    ptx::wait_for_previous_kernel();
  }
  prepare<kDim, kWarps>(p, batch_row, head, table, length, p.rotates && first <= newest && newest < last,
                        factors, prepared);
  __syncthreads();
  Queries<kDim> q;
  load_queries(prepared, p.group, lane, q);
  if (p.rotates && unit < last && unit == newest)
    now.replace((length - 1) % kUnit, prepared.newest[0], prepared.newest[1], lane);

  State<kDim> state;
  state.clear();
  for (; unit < last; unit += kWarps) {
    const int next = unit + kWarps, slot = next * kUnit % kKvPageTokens;
    const uint8_t* at = next < last ? page_of(next) : nullptr;
    const int skip = begin - unit * kUnit, valid = length - unit * kUnit;
    float scores[2][4];
    score(now, q, skip, valid, lane, scores);
    if (next < last) now.load_keys(at, slot, lane);
    if (skip > 0 || valid < kUnit) now.hide(skip, valid, lane);
    add_values(now, scores, state);
    if (next < last) now.load_values(at, slot, lane);
  }

  // Sums over the tokens of other lanes, then a record a warp.
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      state.sum[h] += __shfl_xor_sync(~0u, state.sum[h], distance);
      state.zeros[h] += __shfl_xor_sync(~0u, state.zeros[h], distance);
    }
  // Where a record has column `within` of an eighth of the columns.
  const auto place_of = [](int eighth, int within) { return (within + within / 4) * 8 + eighth; };
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int query = lane % 4 * 2 + h;
    if (query >= p.group) continue;
    float* record = records + (warp * p.group + query) * kPitch;
#pragma unroll
    for (int j = 0; j < kDim / 16; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        // Row r of block 4 w + n is column 8 w + n of the lane's eighth, row r + 8 column 8 w + n + 4.
        record[place_of(lane / 4, j / 4 * 8 + j % 4 + i * 4)] =
            (state.out[j][2 * i + h] - state.zeros[h]) * (1 / kBoost);
  }
  if (lane < 4)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sums[warp][lane * 2 + h] = state.sum[h];
      maxima[warp][lane * 2 + h] = state.largest[h];
    }
  __syncthreads();

  // From here on a thread has four neighbouring columns of a query.
  const auto merge_warps = [&](int vector) {
    const int query = min(vector / (kDim / 4), p.group - 1), column = vector * 4 % kDim;
    const float* from = records + query * kPitch + place_of(column / (kDim / 8), column % (kDim / 8));
    Part part;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) part.largest = fmaxf(part.largest, maxima[w][query]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight = power_of_two(maxima[w][query] - part.largest);
      const float* x = from + w * p.group * kPitch;
      add(weight, make_float4(x[0], x[8], x[16], x[24]), part.total);
      part.sum = fmaf(weight, sums[w][query], part.sum);
    }
    return part;
  };
  if (p.splits == 1) {
    for (int i = threadIdx.x; i < 32 * blocks; i += kWarps * 32)
      store(p, batch_row, head, i, merge_warps(i).result());
    return;
  }
  if constexpr (kClusters) {
    // Block b of 32 vectors is added up by CTA b % splits, which the others send theirs.
    const int each = (blocks + p.splits - 1) / p.splits;
    auto* sent = reinterpret_cast<float4*>(records + kWarps * p.group * kPitch);
    auto* sent_sums = reinterpret_cast<float2*>(sent + each * p.splits * 32);
    const uint32_t vectors_at = ptx::shared_address(sent), sums_at = ptx::shared_address(sent_sums);
    ptx::cluster_wait();
    for (int block = warp; block < blocks; block += kWarps) {
      const Part part = merge_warps(block * 32 + lane);
      const int place = (split * each + block / p.splits) * 32 + lane;
      const uint32_t of = block % p.splits, at = ptx::cluster_address(arrived, of);
      ptx::store_cluster(ptx::cluster_address(vectors_at + 16 * place, of), part.total, at);
      ptx::store_cluster(ptx::cluster_address(sums_at + 8 * place, of), make_float2(part.sum, part.largest),
                         at);
    }
    if (split < blocks) ptx::barrier_wait(arrived, 0);
    for (int block = split + p.splits * warp; block < blocks; block += p.splits * kWarps) {
      float2 of[kMaxCluster];
      Part all;
#pragma unroll
      for (int i = 0; i < kMaxCluster; ++i) {
        of[i] = i < p.splits ? sent_sums[(i * each + block / p.splits) * 32 + lane] : make_float2(0, -1e30f);
        all.largest = fmaxf(all.largest, of[i].y);
      }
#pragma unroll
      for (int i = 0; i < kMaxCluster; ++i) {
        if (i >= p.splits) break;
        const float weight = power_of_two(of[i].y - all.largest);
        add(weight, sent[(i * each + block / p.splits) * 32 + lane], all.total);
        all.sum = fmaf(weight, of[i].x, all.sum);
      }
      store(p, batch_row, head, block * 32 + lane, all.result());
    }
  }
  if constexpr (!kClusters) meet_in_memory<kDim>(p, batch_row, head, pair, merge_warps);
}

// How a pass's attention is spread over the GPU.
struct Shape {
  bool wide;
  int splits;     // CTAs of a sequence and kv head
  bool clusters;  // in which they meet
};

// `pairs` of a sequence and a kv head, of up to `units` units each.
Shape shape_of(int head_dim, int pairs, int units, int processors) {
  const auto power = [](int x) {
    return static_cast<int>(std::bit_floor(static_cast<unsigned>(std::max(x, 1))));
  };
  if (gpu_kernels() != GpuKernels::Wgmma) {
    const int slots = processors * (head_dim == 256 ? 2 : 4);  // CTAs that run at once
    return {false, std::clamp(std::min(slots / pairs, units / kNarrow), 1, kMaxSplits), false};
  }
  // Clusters while their CTAs have SMs of their own; sequences beyond that fill the GPU without splits.
  const int own = std::min(processors / pairs, kMaxCluster), splits = power(std::min(own, units / kNarrow));
  // Narrow CTAs leave room for the first weights of the product behind them.
  const bool wide = own > 0 && units > kNarrowUnits * kNarrow * splits;
  return {wide, splits, true};
}

template <int kDim, int kWarps, bool kClusters>
void launch_kernel(const AttentionParams& params, int pairs, cudaStream_t stream) {
  const auto kernel = attention_kernel<kDim, kWarps, kClusters>;
  const auto bytes = [](int group, int sent_blocks) {
    return static_cast<int>(sizeof(float)) * kWarps * group * kRecordPitch<kDim> +
           sent_blocks * 32 * static_cast<int>(sizeof(float4) + sizeof(float2));
  };
  // All of the SM's memory that can be shared memory: the product before and the one behind share the SM.
  static const cudaError_t prepared[] = {
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           bytes(kHeads, kClusterBlocks)),
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                           cudaSharedmemCarveoutMaxShared)};
  for (const cudaError_t code : prepared) cuda_check(code, "KV4 attention: shared memory");
  const int blocks = (params.group * kDim / 4 + 31) / 32, splits = params.splits;
  const bool meets = kClusters && splits > 1;
  launch_clusters(
      kernel, static_cast<unsigned>(pairs * splits), meets ? static_cast<unsigned>(splits) : 1, kWarps * 32,
      static_cast<size_t>(bytes(params.group, meets ? (blocks + splits - 1) / splits * splits : 0)), stream,
      "KV4 attention", params);
}

template <int kDim>
void launch_dim(const Shape& shape, const AttentionParams& params, int pairs, cudaStream_t stream) {
  if (!shape.clusters) return launch_kernel<kDim, kNarrow, false>(params, pairs, stream);
  if (shape.wide) return launch_kernel<kDim, kWide<kDim>, true>(params, pairs, stream);
  launch_kernel<kDim, kNarrow, true>(params, pairs, stream);
}

void launch(int head_dim, const Shape& shape, const AttentionParams& params, int pairs, cudaStream_t stream) {
  if (head_dim == 64) return launch_dim<64>(shape, params, pairs, stream);
  if (head_dim == 128) return launch_dim<128>(shape, params, pairs, stream);
  launch_dim<256>(shape, params, pairs, stream);
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
  const Shape shape = shape_of(layout.head_dim, pairs, (length + kUnit - 1) / kUnit, workspace.processors);
  AttentionParams params{};
  params.layout = layout;
  params.pages = pages;
  params.page_stride = layout.page_stride();
  params.head_offset = layout.offset;
  params.head_bytes = layout.head_bytes();
  params.rows = rows;
  params.attention = attention;
  params.group = attention.heads / layout.kv_heads;
  params.splits = shape.splits;
  params.partial = workspace.partial.data();
  params.arrived = workspace.arrived.data();
  if (step.rotation != nullptr) {
    require(turns_in_registers(layout.head_dim, step.rotation->half),
            "KV4 attention: a rotary embedding of {} pairs of {} columns does not turn whole lanes",
            step.rotation->half, layout.head_dim);
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
              (shape.splits == 1 || shape.clusters ||
               static_cast<size_t>(pairs) * static_cast<size_t>(shape.splits) *
                       static_cast<size_t>(kHeads * (layout.head_dim + 2)) <=
                   workspace.partial.size()),
          "KV4 attention: {} rows exceed the workspace", rows.rows);
  launch(layout.head_dim, shape, params, pairs, stream);
}

}  // namespace quatrain::ops
