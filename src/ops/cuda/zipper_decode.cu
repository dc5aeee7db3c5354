#include <algorithm>
#include <bit>

#include "ops/cuda/zipper_decode.cuh"
#include "ops/cuda/zipper_decode.h"
#include "ops/cuda/zipper_launch.h"

namespace quatrain::ops {
namespace {

constexpr int kSharedLimit = 227 * 1024;
constexpr int64_t kMostNormedTokens = 1;  // more take every CTA longer than a kernel of their own takes
constexpr int64_t kMostGatedTokens = 16;  // a warp each
constexpr int64_t kMostNormedColumns = 2 * zipper::kDecodeThreads * kRowVector;

template <int kTokenBlocks, int kDrain, bool kGroupScales>
void launch_kernel(zipper::DecodeParams params, int workers, const DecodeLaunch& launch) {
  using S = zipper::DecodeShape<8 * kTokenBlocks, kDrain, kGroupScales>;
  const auto kernel = zipper::decode_kernel<kTokenBlocks, kDrain, kGroupScales>;
  // All of the SM's memory that can be shared memory: an attention CTA has room beside this kernel's.
  static const cudaError_t prepared[] = {
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedLimit),
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                           cudaSharedmemCarveoutMaxShared)};
  for (const cudaError_t code : prepared)
    cuda_check(code, "zipper decode: shared memory (it needs a Hopper GPU)");
  const int all = (params.steps + zipper::kPieceSteps - 1) / zipper::kPieceSteps;
  const auto bytes = [&] { return S::shared_bytes(params.pieces, params.tokens, params.activation_groups); };
  params.pieces = params.normed.x != nullptr ? all : std::min(all, zipper::kMaxPieces);
  while (params.pieces > 1 && params.normed.x == nullptr && bytes() > kSharedLimit) --params.pieces;
  require(bytes() <= kSharedLimit, "zipper decode: {} tokens in {} groups need {} KiB of shared memory",
          params.tokens, params.activation_groups, bytes() >> 10);
  zipper::cluster_launch(kernel, workers, 1, zipper::kDecodeThreads, bytes(), launch.stream, launch.overlap,
                         params);
}

template <int kDrain, bool kGroupScales>
void launch_tokens(const ZipperPlan& plan, const zipper::DecodeParams& params, const DecodeLaunch& launch) {
  if (plan.tile_tokens == 8) return launch_kernel<1, kDrain, kGroupScales>(params, plan.workers, launch);
  launch_kernel<2, kDrain, kGroupScales>(params, plan.workers, launch);
}

zipper::DecodeParams params_of(const ZipperMatrix& weights, const DecodeInput& input,
                               const ZipperPlan& plan) {
  require((input.codes != nullptr) != (input.rows != nullptr), "zipper decode: codes or rows, one of them");
  require(input.tokens() <= plan.tile_tokens, "zipper decode: {} tokens in a plan for {}", input.tokens(),
          plan.tile_tokens);
  zipper::DecodeParams params{};
  params.set_weights(weights);
  if (input.codes != nullptr) {
    params.set_activations(*input.codes);
    params.codes = input.codes->codes.data();
    params.code_stride = input.codes->stride;
  } else {
    require(plan.tile_tokens == 8 && decode_takes_rows(weights, *input.rows),
            "zipper decode: {} rows of {} values cannot be normed within the product", input.tokens(),
            weights.columns);
    params.tokens = static_cast<int>(input.rows->tokens);
    params.activation_group = static_cast<int>(weights.activation_group);
    params.activation_groups =
        static_cast<int>((weights.columns + weights.activation_group - 1) / weights.activation_group);
    params.normed.x = input.rows->x;
    params.normed.row =
        row_params(input.rows->options, weights.columns, params.activation_group, params.activation_groups);
    params.normed.row.epsilon = input.rows->epsilon;
    params.normed.row.stride = input.rows->stride;
  }
  const auto group = static_cast<uint64_t>(params.activation_group);
  require(params.activation_groups == 1 || std::has_single_bit(group),
          "zipper decode: activation groups of {} columns; it takes powers of two or the whole row", group);
  params.group_shift = params.activation_groups == 1 ? 31 : std::countr_zero(group);
  params.steps = static_cast<int>(weights.steps);
  params.strips = (params.rows + 15) / 16;
  params.slices = plan.slices;
  params.cta_strips = zipper::kDecodeWarps / plan.slices;
  return params;
}

void run(const ZipperMatrix& weights, const ZipperPlan& plan, const zipper::DecodeParams& params,
         const DecodeLaunch& launch) {
  if (params.tokens == 0) return;
  if (weights.drain == 128 && !weights.group_scales) return launch_tokens<128, false>(plan, params, launch);
  if (weights.drain == 128) return launch_tokens<128, true>(plan, params, launch);
  if (weights.drain == 64) return launch_tokens<64, true>(plan, params, launch);
  launch_tokens<32, true>(plan, params, launch);
}

bool few_columns(int64_t columns, bool whole_row) {
  return whole_row || columns == 32 || columns == 64 || columns == 128 || columns == 256;
}

}  // namespace

bool decode_takes_rows(const ZipperMatrix& weights, const NormedRows& rows) {
  const int order = rows.options.hadamard;
  const auto aligned = [](const float* x) { return reinterpret_cast<uintptr_t>(x) % 16 == 0; };
  return aligned(rows.x) && aligned(rows.options.add) && aligned(rows.options.gain) &&
         weights.columns % kRowVector == 0 && rows.stride % kRowVector == 0 &&
         rows.tokens <= kMostNormedTokens && weights.columns <= kMostNormedColumns &&
         few_columns(weights.activation_group, weights.activation_group == weights.columns) &&
         (order == 0 || (order >= kRowVector && order <= kWarpColumns && weights.columns % order == 0 &&
                         std::has_single_bit(static_cast<unsigned>(order)))) &&
         (rows.options.add == nullptr || rows.options.sum != rows.x);
}

bool decode_takes_gate(const ZipperMatrix& gate_up, int64_t tokens, const RowOptions& options,
                       const DeviceActivations& out, int processors) {
  const int order = options.hadamard;
  const int64_t parts = out.width / kStepColumns, rounds = (parts + processors - 1) / processors;
  return tokens <= kMostGatedTokens && gate_up.rows == 2 * out.width && out.width % kStepColumns == 0 &&
         out.group <= kStepColumns && few_columns(out.group, false) &&
         (order == 0 || (order <= kStepColumns && std::has_single_bit(static_cast<unsigned>(order)))) &&
         rounds * processors * 4 <= parts * 5;
}

template <typename Out>
void zipper_decode(const ZipperMatrix& weights, const DecodeInput& input, const ZipperPlan& plan, Out* y,
                   int64_t stride, const DecodeLaunch& launch) {
  zipper::DecodeParams params = params_of(weights, input, plan);
  params.set_results(y, stride);
  run(weights, plan, params, launch);
}

template void zipper_decode(const ZipperMatrix&, const DecodeInput&, const ZipperPlan&, float*, int64_t,
                            const DecodeLaunch&);
template void zipper_decode(const ZipperMatrix&, const DecodeInput&, const ZipperPlan&, __nv_bfloat16*,
                            int64_t, const DecodeLaunch&);

void zipper_decode_gated(const ZipperMatrix& gate_up, const DecodeInput& input, const RowOptions& options,
                         int processors, DeviceActivations& out, const DecodeLaunch& launch) {
  require(decode_takes_gate(gate_up, input.tokens(), options, out, processors),
          "zipper decode: {} rows of weights make no codes of {} columns in groups of {}", gate_up.rows,
          out.width, out.group);
  const int64_t parts = out.width / kStepColumns;
  const ZipperPlan plan{ZipperPlan::Kernel::Decode, input.tokens() <= 8 ? 8 : 16,
                        static_cast<int>(std::min<int64_t>(parts, processors)), 1, false};
  zipper::DecodeParams params = params_of(gate_up, input, plan);
  out.tokens = params.tokens;
  params.gate = {static_cast<int>(out.width / 16),
                 row_params(options, out.width, out.group, out.groups),
                 out.codes.data(),
                 out.scale.data(),
                 out.zero.data(),
                 out.stride,
                 out.token_stride};
  run(gate_up, plan, params, launch);
}

}  // namespace quatrain::ops
