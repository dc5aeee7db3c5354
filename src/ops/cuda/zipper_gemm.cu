#include <algorithm>
#include <bit>
#include <type_traits>

#include "ops/cuda/gpu.h"
#include "ops/cuda/zipper_decode.cuh"
#include "ops/cuda/zipper_gemm.h"
#include "ops/cuda/zipper_gemm_sm90.cuh"
#include "ops/cuda/zipper_launch.h"

namespace quatrain::ops {
namespace {

using zipper::cluster_launch;
using zipper::code_map;
using zipper::Params;
using zipper::Shape;

template <typename S>
void launch(const Params& params, const DeviceActivations& x, cudaStream_t stream, bool overlap) {
  const auto kernel = zipper::zipper_kernel<S>;
  static const cudaError_t prepared =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  cuda_check(prepared, "zipper GEMM: shared memory (it needs a Hopper GPU)");
  const CUtensorMap codes = code_map(x, S::kTokens / S::kCluster);
  cluster_launch(kernel, params.schedule.workers, S::kCluster, S::kThreads, S::kSharedBytes, stream, overlap,
                 codes, params);
}

template <int kDrain, bool kGroupScales>
void launch_tokens(int tile_tokens, const Params& params, const DeviceActivations& x, cudaStream_t stream,
                   bool overlap) {
  if (tile_tokens == 16) return launch<Shape<16, kDrain, kGroupScales>>(params, x, stream, overlap);
  if (tile_tokens == 32) return launch<Shape<32, kDrain, kGroupScales>>(params, x, stream, overlap);
  if (tile_tokens == 64) return launch<Shape<64, kDrain, kGroupScales>>(params, x, stream, overlap);
  launch<Shape<128, kDrain, kGroupScales>>(params, x, stream, overlap);
}

bool takes_wide(const ZipperMatrix& weights) {
  return weights.drain == 128 && !weights.group_scales;
}

constexpr int kSharedLimit = 227 * 1024;

template <int kTokenBlocks, int kDrain, bool kGroupScales>
void launch_decode(zipper::DecodeParams params, int workers, cudaStream_t stream, bool overlap) {
  using S = zipper::DecodeShape<8 * kTokenBlocks, kDrain, kGroupScales>;
  const auto kernel = zipper::decode_kernel<kTokenBlocks, kDrain, kGroupScales>;
  static const cudaError_t prepared =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedLimit);
  cuda_check(prepared, "zipper decode: shared memory (it needs a Hopper GPU)");
  const int wanted =
      std::min((params.steps + zipper::kPieceSteps - 1) / zipper::kPieceSteps, zipper::kMaxPieces);
  params.pieces = wanted;
  while (params.pieces > 1 && S::shared_bytes(params.pieces, params.activation_groups) > kSharedLimit)
    --params.pieces;
  const int bytes = S::shared_bytes(params.pieces, params.activation_groups);
  require(bytes <= kSharedLimit, "zipper decode: {} tokens in {} groups need {} KiB of shared memory",
          params.tokens, params.activation_groups, bytes >> 10);
  cluster_launch(kernel, workers, 1, zipper::kDecodeWarps * 32, bytes, stream, overlap, params);
}

template <int kDrain, bool kGroupScales>
void launch_decode_tokens(const ZipperPlan& plan, const zipper::DecodeParams& params, cudaStream_t stream,
                          bool overlap) {
  if (plan.tile_tokens == 8)
    return launch_decode<1, kDrain, kGroupScales>(params, plan.workers, stream, overlap);
  launch_decode<2, kDrain, kGroupScales>(params, plan.workers, stream, overlap);
}

void run_decode(const ZipperMatrix& weights, const DeviceActivations& x, const ZipperPlan& plan, void* y,
                bool y_fp32, int64_t stride, cudaStream_t stream, bool overlap) {
  require(x.groups == 1 || std::has_single_bit(static_cast<uint64_t>(x.group)),
          "zipper decode: activation groups of {} columns; it takes powers of two or the whole row", x.group);
  require(x.tokens <= plan.tile_tokens, "zipper decode: {} tokens in a plan for {}", x.tokens,
          plan.tile_tokens);
  zipper::DecodeParams params{};
  params.chunks = weights.chunks.data();
  params.residual = weights.residual.data();
  params.blocks = weights.blocks.data();
  params.row_scale = weights.row_scale.data();
  params.bias = weights.bias.data();
  params.codes = x.codes.data();
  params.scale = x.scale.data();
  params.zero = x.zero.data();
  params.code_stride = x.stride;
  params.token_stride = x.token_stride;
  params.group_shift = x.groups == 1 ? 31 : std::countr_zero(static_cast<uint64_t>(x.group));
  params.activation_groups = static_cast<int>(x.groups);
  params.rows = static_cast<int>(weights.rows);
  params.tokens = static_cast<int>(x.tokens);
  params.steps = static_cast<int>(weights.steps);
  params.strips = (params.rows + 15) / 16;
  params.slices = plan.slices;
  params.cta_strips = zipper::kDecodeWarps / plan.slices;
  params.y = y;
  params.y_fp32 = y_fp32;
  params.y_stride = stride;
  if (weights.drain == 128 && !weights.group_scales)
    return launch_decode_tokens<128, false>(plan, params, stream, overlap);
  if (weights.drain == 128) return launch_decode_tokens<128, true>(plan, params, stream, overlap);
  if (weights.drain == 64) return launch_decode_tokens<64, true>(plan, params, stream, overlap);
  launch_decode_tokens<32, true>(plan, params, stream, overlap);
}

}  // namespace

ZipperWorkspace::ZipperWorkspace(int64_t rows, int64_t tokens) : processors(gpu_processors()) {
  // At most two CTAs an SM, two partial tiles a CTA; 128 x 128 results with one CTA an SM are the largest.
  partial = DeviceBuffer<float>(static_cast<size_t>(processors) * 2 * kTileRows * 128);
  const int64_t row_tiles = (rows + kTileRows - 1) / kTileRows + 1;
  arrived = DeviceBuffer<int>(static_cast<size_t>(4 * row_tiles * ((tokens + 15) / 16)));
}

template <typename Out>
void zipper_gemm_planned(const ZipperMatrix& weights, const DeviceActivations& x, ZipperWorkspace& workspace,
                         const ZipperPlan& plan, Out* y, int64_t stride, cudaStream_t stream, bool overlap) {
  require(x.width == weights.columns && x.group == weights.activation_group,
          "zipper GEMM: activations of {} columns in groups of {}, but the matrix was packed for {} in "
          "groups of {}",
          x.width, x.group, weights.columns, weights.activation_group);
  require(stride >= weights.rows, "zipper GEMM: rows of y {} apart hold {} results", stride, weights.rows);
  if (x.tokens == 0) return;
  if (plan.kernel == ZipperPlan::Kernel::Decode)
    return run_decode(weights, x, plan, y, std::is_same_v<Out, float>, stride, stream, overlap);
  Params params{};
  params.chunks = weights.chunks.data();
  params.residual = weights.residual.data();
  params.blocks = weights.blocks.data();
  params.row_scale = weights.row_scale.data();
  params.bias = weights.bias.data();
  params.scale = x.scale.data();
  params.zero = x.zero.data();
  params.token_stride = x.token_stride;
  params.activation_group = static_cast<int>(x.group);
  params.activation_groups = static_cast<int>(x.groups);
  params.rows = static_cast<int>(weights.rows);
  params.tokens = static_cast<int>(x.tokens);
  const bool wide = plan.kernel == ZipperPlan::Kernel::Wide;
  require(!wide || takes_wide(weights), "zipper GEMM: a wide plan for weights drained every {} columns{}",
          weights.drain, weights.group_scales ? " with scales a group" : "");
  const int cluster = plan.tile_tokens >= 128 ? 2 : 1;
  params.schedule = {static_cast<int>((weights.tiles + cluster - 1) / cluster),
                     static_cast<int>((x.tokens + plan.tile_tokens - 1) / plan.tile_tokens),
                     static_cast<int>(weights.steps), plan.workers, plan.stream_k};
  params.stream_weights = params.schedule.token_tiles == 1;
  params.partial = workspace.partial.data();
  params.arrived = workspace.arrived.data();
  params.y = y;
  params.y_fp32 = std::is_same_v<Out, float>;
  params.y_stride = stride;
  require(static_cast<size_t>((cluster == 2 ? 8 : 2) * params.schedule.row_tiles *
                              params.schedule.token_tiles) <= workspace.arrived.size(),
          "zipper GEMM: {} x {} results exceed the workspace", weights.rows, x.tokens);
  if (wide) return zipper::launch_wide(plan.tile_tokens, params, x, stream, overlap);
  if (weights.drain == 128 && !weights.group_scales)
    return launch_tokens<128, false>(plan.tile_tokens, params, x, stream, overlap);
  if (weights.drain == 128) return launch_tokens<128, true>(plan.tile_tokens, params, x, stream, overlap);
  if (weights.drain == 64) return launch_tokens<64, true>(plan.tile_tokens, params, x, stream, overlap);
  launch_tokens<32, true>(plan.tile_tokens, params, x, stream, overlap);
}

template void zipper_gemm_planned(const ZipperMatrix&, const DeviceActivations&, ZipperWorkspace&,
                                  const ZipperPlan&, float*, int64_t, cudaStream_t, bool);
template void zipper_gemm_planned(const ZipperMatrix&, const DeviceActivations&, ZipperWorkspace&,
                                  const ZipperPlan&, __nv_bfloat16*, int64_t, cudaStream_t, bool);

void zipper_gemm(const ZipperMatrix& weights, const DeviceActivations& x, ZipperWorkspace& workspace,
                 __nv_bfloat16* y, int64_t stride, cudaStream_t stream, bool overlap) {
  zipper_gemm_planned(weights, x, workspace,
                      plan_zipper(x.tokens, weights.rows, weights.tiles, weights.steps, workspace.processors,
                                  takes_wide(weights)),
                      y, stride, stream, overlap);
}

void zipper_gemm(const ZipperMatrix& weights, const DeviceActivations& x, ZipperWorkspace& workspace,
                 float* y, int64_t stride, cudaStream_t stream, bool overlap) {
  zipper_gemm_planned(weights, x, workspace,
                      plan_zipper(x.tokens, weights.rows, weights.tiles, weights.steps, workspace.processors,
                                  takes_wide(weights)),
                      y, stride, stream, overlap);
}

}  // namespace quatrain::ops
