#include <algorithm>
#include <iterator>

#include "ops/cuda/gpu.h"
#include "ops/cuda/zipper_decode.h"
#include "ops/cuda/zipper_gemm.h"
#include "ops/cuda/zipper_gemm_sm90.cuh"
#include "ops/cuda/zipper_launch.h"

namespace quatrain::ops {
namespace {

using zipper::byte_map;
using zipper::cluster_launch;
using zipper::Params;
using zipper::Shape;

template <typename S>
void launch(const Params& params, const DeviceActivations& x, cudaStream_t stream, bool overlap) {
  const auto kernel = zipper::zipper_kernel<S>;
  static const cudaError_t prepared =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  cuda_check(prepared, "zipper GEMM: shared memory (it needs a Hopper GPU)");
  const CUtensorMap codes = byte_map(x.codes.data(), x.stride, x.tokens, S::kTokens / S::kCluster);
  const int cluster = params.schedule.cluster;
  cluster_launch(kernel, params.schedule.workers / cluster, S::kCluster * cluster, S::kThreads,
                 S::kSharedBytes, stream, overlap, codes, params);
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

// Do the plan's clusters have equally many whole tiles, and room for what they exchange?
bool fits(const ZipperPlan& plan, const ZipperSchedule& schedule) {
  if (plan.kernel != ZipperPlan::Kernel::Gemm || !plan.stream_k || plan.workers % plan.cluster != 0)
    return false;
  const int outputs = schedule.row_tiles * schedule.token_tiles, clusters = plan.workers / plan.cluster;
  return outputs % clusters == 0 &&
         cluster_fits(plan.tile_tokens, plan.cluster, outputs / clusters, schedule.steps);
}

ZipperPlan plan_of(const ZipperMatrix& weights, int64_t tokens, const ZipperWorkspace& workspace) {
  const bool wide = takes_wide(weights) && workspace.wide.holds(tokens, weights.columns);
  return plan_zipper(tokens, weights.rows, weights.tiles, weights.steps, workspace.slots, wide);
}

// Clusters that the current GPU runs at once: its GPCs may have lost SMs.
ZipperSlots measured_slots(int processors) {
  using S = Shape<64, 128, false>;
  const auto kernel = zipper::zipper_kernel<S>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes),
             "zipper GEMM: shared memory (it needs a Hopper GPU)");
  ZipperSlots slots = processors;
  for (int i = 0; i < 3; ++i) {
    cudaLaunchAttribute size{};
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim = {2u << i, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(processors / (2 << i) * (2 << i)));
    config.blockDim = dim3(S::kThreads);
    config.dynamicSmemBytes = S::kSharedBytes;
    config.attrs = &size;
    config.numAttrs = 1;
    cuda_check(cudaOccupancyMaxActiveClusters(&slots.clusters[i], kernel, &config), "clusters of the GPU");
  }
  return slots;
}

}  // namespace

ZipperWorkspace::ZipperWorkspace(int64_t rows, int64_t tokens, int64_t columns)
    : processors(gpu_processors()), slots(processors) {
  if (gpu_kernels() == GpuKernels::Wgmma) slots = measured_slots(processors);
  // At most two CTAs an SM, two partial tiles a CTA; 128 x 128 results with one CTA an SM are the largest.
  partial = DeviceBuffer<float>(static_cast<size_t>(processors) * 2 * kTileRows * 128);
  const int64_t row_tiles = (rows + kTileRows - 1) / kTileRows + 1;
  arrived = DeviceBuffer<int>(static_cast<size_t>(4 * row_tiles * ((tokens + 15) / 16)));
  if (columns > 0 && gpu_kernels() == GpuKernels::Wgmma) wide = WideActivations(tokens, columns);
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
    return zipper_decode(weights, {&x, nullptr}, plan, y, stride, {stream, overlap});
  Params params{};
  params.set_weights(weights);
  params.set_activations(x);
  params.set_results(y, stride);
  const bool wide = plan.kernel == ZipperPlan::Kernel::Wide;
  require(!wide || takes_wide(weights), "zipper GEMM: a wide plan for weights drained every {} columns{}",
          weights.drain, weights.group_scales ? " with scales a group" : "");
  const int cluster = plan.tile_tokens >= 128 ? 2 : 1;
  params.schedule = {static_cast<int>((weights.tiles + cluster - 1) / cluster),
                     static_cast<int>((x.tokens + plan.tile_tokens - 1) / plan.tile_tokens),
                     static_cast<int>(weights.steps),
                     plan.workers,
                     plan.stream_k,
                     plan.cluster};
  params.stream_weights = params.schedule.token_tiles == 1;
  params.partial = workspace.partial.data();
  params.arrived = workspace.arrived.data();
  require(static_cast<size_t>((cluster == 2 ? 8 : 2) * params.schedule.row_tiles *
                              params.schedule.token_tiles) <= workspace.arrived.size(),
          "zipper GEMM: {} x {} results exceed the workspace", weights.rows, x.tokens);
  require(plan.cluster == 1 || fits(plan, params.schedule),
          "zipper GEMM: {} workers in clusters of {} do not take {} x {} tiles of {} tokens", plan.workers,
          plan.cluster, params.schedule.row_tiles, params.schedule.token_tiles, plan.tile_tokens);
  require(
      !plan.stream_k || plan.cluster > 1 ||
          int64_t{2} * cluster * kTileRows * plan.tile_tokens * plan.workers <= std::ssize(workspace.partial),
      "zipper GEMM: the partial sums of {} workers exceed the workspace", plan.workers);
  if (wide) return zipper::launch_wide(plan.tile_tokens, params, x, workspace.wide, stream, overlap);
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
  zipper_gemm_planned(weights, x, workspace, plan_of(weights, x.tokens, workspace), y, stride, stream,
                      overlap);
}

void zipper_gemm(const ZipperMatrix& weights, const DeviceActivations& x, ZipperWorkspace& workspace,
                 float* y, int64_t stride, cudaStream_t stream, bool overlap) {
  zipper_gemm_planned(weights, x, workspace, plan_of(weights, x.tokens, workspace), y, stride, stream,
                      overlap);
}

}  // namespace quatrain::ops
