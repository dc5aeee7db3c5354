#include <algorithm>
#include <bit>

#include "ops/cuda/ptx/launch.cuh"
#include "ops/cuda/quantize_rows.h"
#include "ops/cuda/row_codes.cuh"

namespace quatrain::ops {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kThreadsOfPart = 128;  // of 1,024 columns: a multiple of groups and transforms that are no row

struct CodesOutput {
  int8_t* codes;
  float* scale;
  int32_t* zero;
  int64_t code_stride, token_stride;
};

// One block a token, or a part of one; a thread holds kPasses vectors of the row.
template <typename T, RowSource kSource, int kPasses>
__global__ void __launch_bounds__(kMaxThreads) quantize_kernel(const T* x, RowParams p, CodesOutput out) {
  extern __shared__ float transform[];
  __shared__ float reduced[kRowStretches];
  ptx::allow_next_kernel();
  const int64_t token = blockIdx.x;
  const int first_column = blockIdx.y * kPasses * blockDim.x * kRowVector;
  prefetch_gain(p, first_column, kPasses * blockDim.x * kRowVector);
  ptx::wait_for_previous_kernel();
  row_codes<T, kSource, kPasses, false>(
      x, p, token, first_column, transform, reduced,
      [&](int column, const StoredGroup& group, bool opens, uint2 codes) {
        if (opens) {
          const int64_t at = (column >> p.group_shift) * out.token_stride + token;
          out.scale[at] = group.scale;
          out.zero[at] = group.zero;
        }
        *reinterpret_cast<uint2*>(out.codes + token * out.code_stride + column) = codes;
      },
      [] {});
}

template <typename T, RowSource kSource>
void run(const T* x, int64_t stride, float epsilon, const RowOptions& options, DeviceActivations& out,
         cudaStream_t stream, bool overlap) {
  const ActivationPolicy& policy = options.policy;
  require(policy.bits == 4 || policy.bits == 8, "GPU quantiser: {} bits; it takes 4 or 8", policy.bits);
  require(out.groups == 1 || out.group == 32 || out.group == 64 || out.group == 128 || out.group == 256,
          "GPU quantiser: groups of {} columns; it takes 32, 64, 128, 256 or the whole row of {}", out.group,
          out.width);
  const int order = options.hadamard;
  require(order == 0 || (order >= kRowVector && std::has_single_bit(static_cast<unsigned>(order)) &&
                         out.width % order == 0),
          "GPU quantiser: a Hadamard transform of order {} over {} columns; it takes powers of two from {} "
          "that divide them",
          order, out.width, kRowVector);
  require(options.add == nullptr || (kSource == RowSource::RmsNorm && options.sum != nullptr),
          "GPU quantiser: an addition needs an RMSNorm after it and a place for the sums");
  const int64_t vectors = (out.width + kRowVector - 1) / kRowVector;
  require(vectors <= 4 * kMaxThreads, "GPU quantiser: rows of {} values; it takes up to {}", out.width,
          4 * kMaxThreads * kRowVector);
  // Where nothing spans a row, several blocks share it: one token fills the GPU sooner.
  const bool shared_row = kSource != RowSource::RmsNorm && out.groups > 1 && order <= kThreadsOfPart;
  const int passes = shared_row || vectors <= kMaxThreads / 2 ? 1 : vectors <= 2 * kMaxThreads ? 2 : 4;
  const auto threads = shared_row ? static_cast<unsigned>(kThreadsOfPart)
                                  : static_cast<unsigned>(((vectors + passes - 1) / passes + 31) / 32 * 32);
  RowParams params = row_params(options, out.width, out.group, out.groups);
  params.epsilon = epsilon;
  params.stride = stride;
  const CodesOutput codes{out.codes.data(), out.scale.data(), out.zero.data(), out.stride, out.token_stride};
  if (out.tokens == 0) return;
  const auto kernel = passes == 1   ? quantize_kernel<T, kSource, 1>
                      : passes == 2 ? quantize_kernel<T, kSource, 2>
                                    : quantize_kernel<T, kSource, 4>;
  const size_t shared = order > kWarpColumns ? static_cast<size_t>(out.width) * sizeof(float) : 0;
  if (shared > 48 * 1024)
    cuda_check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "quantiser: shared memory");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(out.tokens),
                        static_cast<unsigned>((vectors + threads * passes - 1) / (threads * passes)));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  cuda_check(cudaLaunchKernelEx(&config, kernel, x, params, codes), "quantiser");
}

}  // namespace

template <typename T>
void quantize_rows(const T* x, int64_t stride, const RowOptions& options, DeviceActivations& out,
                   cudaStream_t stream, bool overlap) {
  run<T, RowSource::Plain>(x, stride, 0.0f, options, out, stream, overlap);
}
template <typename T>
void rms_norm_quantize(const T* x, int64_t stride, float epsilon, const RowOptions& options,
                       DeviceActivations& out, cudaStream_t stream, bool overlap) {
  run<T, RowSource::RmsNorm>(x, stride, epsilon, options, out, stream, overlap);
}
template <typename T>
void silu_mul_quantize(const T* x, int64_t stride, const RowOptions& options, DeviceActivations& out,
                       cudaStream_t stream, bool overlap) {
  run<T, RowSource::SiluMul>(x, stride, 0.0f, options, out, stream, overlap);
}

template void quantize_rows(const float*, int64_t, const RowOptions&, DeviceActivations&, cudaStream_t, bool);
template void quantize_rows(const __nv_bfloat16*, int64_t, const RowOptions&, DeviceActivations&,
                            cudaStream_t, bool);
template void rms_norm_quantize(const float*, int64_t, float, const RowOptions&, DeviceActivations&,
                                cudaStream_t, bool);
template void rms_norm_quantize(const __nv_bfloat16*, int64_t, float, const RowOptions&, DeviceActivations&,
                                cudaStream_t, bool);
template void silu_mul_quantize(const float*, int64_t, const RowOptions&, DeviceActivations&, cudaStream_t,
                                bool);
template void silu_mul_quantize(const __nv_bfloat16*, int64_t, const RowOptions&, DeviceActivations&,
                                cudaStream_t, bool);

}  // namespace quatrain::ops
