#include <algorithm>
#include <bit>
#include <type_traits>

#include "ops/cuda/zipper_mma.h"
#include "ops/cuda/zipper_mma_launch.h"

namespace quatrain::ops {
namespace {
int shift_of_group(int group) {
  return std::has_single_bit(static_cast<unsigned>(group)) ? std::countr_zero(static_cast<unsigned>(group))
                                                           : -1;
}
}  // namespace

MmaPlan plan_mma(int64_t tokens, int64_t tiles, int64_t steps, int processors, bool nibbles) {
  MmaPlan plan{};
  plan.nibbles = nibbles;
  plan.tile_tokens = nibbles ? (tokens > 64 ? 128 : 64) : (tokens > 16 ? 64 : 16);
  const int64_t outputs = tiles * ((tokens + plan.tile_tokens - 1) / plan.tile_tokens);
  const int64_t waves = (outputs + processors - 1) / processors;
  // As in plan_gemm(): whole tiles unless a tenth of the last wave's processors would idle.
  plan.stream_k = outputs * 10 < waves * processors * 9;
  plan.workers = static_cast<int>(std::clamp<int64_t>(outputs * steps / 4, 1, processors));
  if (!plan.stream_k) plan.workers = static_cast<int>(std::min<int64_t>(plan.workers, outputs));
  return plan;
}

template <typename Out>
void zipper_mma(const ZipperMatrix& weights, const DeviceActivations& x, ZipperWorkspace& workspace,
                const MmaPlan& plan, Out* y, int64_t stride, cudaStream_t stream) {
  require(x.width == weights.columns && x.group == weights.activation_group,
          "zipper GEMM: activations of {} columns in groups of {}, but the matrix was packed for {} in "
          "groups of {}",
          x.width, x.group, weights.columns, weights.activation_group);
  require(stride >= weights.rows, "zipper GEMM: rows of y {} apart hold {} results", stride, weights.rows);
  require(!plan.nibbles || x.packed, "zipper GEMM: a product by nibbles of activations that are not packed");
  require(plan.tile_tokens == 64 || plan.tile_tokens == (plan.nibbles ? 128 : 16),
          "zipper GEMM: no tile of {} tokens", plan.tile_tokens);
  if (x.tokens == 0) return;
  zipper::MmaParams params{};
  params.set_weights(weights);
  params.set_activations(x);
  params.set_results(y, stride);
  if (plan.nibbles) params.zero = x.nibble_zero.data();
  params.codes = plan.nibbles ? reinterpret_cast<const uint8_t*>(x.nibbles.data())
                              : reinterpret_cast<const uint8_t*>(x.codes.data());
  params.code_stride = x.stride;
  params.zero_group = plan.nibbles ? x.nibble_unit : params.activation_group;
  params.zero_groups = plan.nibbles ? static_cast<int>(x.stride / x.nibble_unit) : params.activation_groups;
  params.activation_shift = shift_of_group(params.activation_group);
  params.zero_shift = shift_of_group(params.zero_group);
  params.capacity = static_cast<int>(x.capacity);
  params.chunk_bytes = weights.chunk_bytes;
  params.group_scales = weights.group_scales;
  params.schedule = {static_cast<int>(weights.tiles),
                     static_cast<int>((x.tokens + plan.tile_tokens - 1) / plan.tile_tokens),
                     static_cast<int>(weights.steps), plan.workers, plan.stream_k};
  const ZipperSchedule& schedule = params.schedule;
  require(static_cast<size_t>(schedule.row_tiles) * static_cast<size_t>(schedule.token_tiles) <=
                  workspace.arrived.size() &&
              (!plan.stream_k ||
               static_cast<size_t>(plan.workers) * 2 * kTileRows * static_cast<size_t>(plan.tile_tokens) <=
                   workspace.partial.size()),
          "zipper GEMM: {} x {} results exceed the workspace", weights.rows, x.tokens);
  params.partial = workspace.partial.data();
  params.arrived = workspace.arrived.data();
  if (plan.nibbles)
    zipper::launch_mma_nibbles(plan.tile_tokens, weights.drain, params, stream);
  else
    zipper::launch_mma_bytes(plan.tile_tokens, weights.drain, params, stream);
}

template void zipper_mma(const ZipperMatrix&, const DeviceActivations&, ZipperWorkspace&, const MmaPlan&,
                         float*, int64_t, cudaStream_t);
template void zipper_mma(const ZipperMatrix&, const DeviceActivations&, ZipperWorkspace&, const MmaPlan&,
                         __nv_bfloat16*, int64_t, cudaStream_t);

}  // namespace quatrain::ops
