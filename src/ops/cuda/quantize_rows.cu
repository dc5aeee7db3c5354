#include <algorithm>
#include <bit>

#include "ops/cuda/group_quantizer.cuh"
#include "ops/cuda/ptx/bulk_copy.cuh"
#include "ops/cuda/ptx/launch.cuh"
#include "ops/cuda/quantize_rows.h"

namespace quatrain::ops {
namespace {

enum class Source { Plain, RmsNorm, SiluMul };

// A thread holds kVector neighbouring columns at a time: a 16-byte load of BF16, and groups end at lanes.
constexpr int kVector = 8;
constexpr int kMaxThreads = 1024;
constexpr int kThreadsOfPart = 128;  // of 1,024 columns: a multiple of groups and transforms that are no row

struct RowParams {
  const float* gain;
  float epsilon;
  int width, group, groups, bits, hadamard;
  bool symmetric, gelu;
  const float* add;
  float* sum;
  unsigned long long* bad;
  int8_t* codes;
  float* scale;
  int32_t* zero;
  int64_t stride, code_stride, token_stride;
};

__device__ __forceinline__ void load_vector(const float* from, float (&to)[kVector]) {
  const auto* vectors = reinterpret_cast<const float4*>(from);
  const float4 a = vectors[0], b = vectors[1];
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}
__device__ __forceinline__ void load_vector(const __nv_bfloat16* from, float (&to)[kVector]) {
  const uint4 v = *reinterpret_cast<const uint4*>(from);
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = __uint_as_float(words[i] << 16);
    to[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}

// kVector values at a column; past the width they are zero. The fast path needs aligned rows.
template <typename T>
__device__ __forceinline__ void load(const T* row, int column, int width, bool aligned,
                                     float (&to)[kVector]) {
  if (aligned && column + kVector <= width) return load_vector(row + column, to);
#pragma unroll
  for (int i = 0; i < kVector; ++i) to[i] = column + i < width ? static_cast<float>(row[column + i]) : 0.0f;
}

template <typename Combine>
__device__ float block_reduce(float value, float neutral, float* shared, Combine combine) {
  const auto reduce_warp = [&] {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      value = combine(value, __shfl_xor_sync(~0u, value, distance));
  };
  reduce_warp();
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : neutral;
  reduce_warp();
  return value;
}

// Butterflies of distance 1 ... order / 2, unnormalised: within a thread, across lanes, then through
// `shared`.
template <int kPasses>
__device__ void hadamard(float (&x)[kPasses][kVector], int order, int width, float* shared) {
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
    for (int distance = 1; distance < kVector; distance *= 2)
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        if ((i & distance) == 0) {
          const float a = x[pass][i], b = x[pass][i | distance];
          x[pass][i] = a + b;
          x[pass][i | distance] = a - b;
        }
    for (int distance = kVector; distance < min(order, 32 * kVector); distance *= 2) {
      const bool upper = threadIdx.x & (distance / kVector);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float other = __shfl_xor_sync(~0u, x[pass][i], distance / kVector);
        x[pass][i] = upper ? other - x[pass][i] : x[pass][i] + other;
      }
    }
  }
  for (int distance = 32 * kVector; distance < order; distance *= 2) {
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int column = (pass * blockDim.x + threadIdx.x) * kVector;
      if (column < width)
#pragma unroll
        for (int i = 0; i < kVector; ++i) shared[column + i] = x[pass][i];
    }
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int column = (pass * blockDim.x + threadIdx.x) * kVector;
      const bool upper = column & distance;
      if (column < width)
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float other = shared[(column + i) ^ distance];
          x[pass][i] = upper ? other - x[pass][i] : x[pass][i] + other;
        }
    }
  }
}

// One block a token, or a part of one; a thread holds kPasses vectors of the row.
template <typename T, Source kSource, int kPasses>
__global__ void __launch_bounds__(kMaxThreads) quantize_kernel(const T* x, RowParams p) {
  extern __shared__ float transform[];
  __shared__ float reduced[32];
  ptx::allow_next_kernel();
  const int64_t token = blockIdx.x;
  const int first_column = blockIdx.y * kPasses * blockDim.x * kVector;
  // A weight, needed late: it does not wait for the kernel before.
  if (p.gain != nullptr)
    for (int pass = 0; pass < kPasses; ++pass) {
      const int column = first_column + (pass * blockDim.x + threadIdx.x) * kVector;
      if (column < p.width) ptx::prefetch_l1(p.gain + column);
    }
  ptx::wait_for_previous_kernel();
  const T* row = x + token * p.stride;
  const bool aligned = p.stride % kVector == 0 && (reinterpret_cast<uintptr_t>(x) & 15) == 0 &&
                       (kSource != Source::SiluMul || p.width % kVector == 0);
  float v[kPasses][kVector];
  float squares = 0;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int column = first_column + (pass * blockDim.x + threadIdx.x) * kVector;
    load(row, column, p.width, aligned, v[pass]);
    if constexpr (kSource == Source::SiluMul) {
      float up[kVector];
      load(row + p.width, column, p.width, aligned, up);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float gate = v[pass][i];
        // GELU: g / 2 (1 + tanh(u)) = g / (1 + e^-2u), u = sqrt(2 / pi) (g + 0.044715 g^3).
        const float power = p.gelu ? -1.5957691216f * fmaf(0.044715f * gate * gate, gate, gate) : -gate;
        v[pass][i] = gate / (1.0f + expf(power)) * up[i];
      }
    }
    if (kSource == Source::RmsNorm && p.add != nullptr && column < p.width) {
      float more[kVector];
      load(p.add + token * p.width, column, p.width, p.width % kVector == 0, more);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        v[pass][i] += more[i];
        if (column + i < p.width) p.sum[token * p.width + column + i] = v[pass][i];
      }
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares = fmaf(v[pass][i], v[pass][i], squares);
  }
  float factor = 1.0f;
  if constexpr (kSource == Source::RmsNorm) {
    squares = block_reduce(squares, 0.0f, reduced, [](float a, float b) { return a + b; });
    factor = rsqrtf(squares / static_cast<float>(p.width) + p.epsilon);
    if (p.bad != nullptr && !isfinite(squares)) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass)
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const int column = first_column + (pass * blockDim.x + threadIdx.x) * kVector + i;
          if (column < p.width && (column + 1 == p.width || !isfinite(v[pass][i])))
            atomicMin(p.bad, static_cast<unsigned long long>(token * p.width + column));
        }
    }
  }
  if (kSource == Source::RmsNorm || p.gain != nullptr) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int column = first_column + (pass * blockDim.x + threadIdx.x) * kVector;
      float gain[kVector] = {1, 1, 1, 1, 1, 1, 1, 1};
      if (p.gain != nullptr) load(p.gain, column, p.width, true, gain);
#pragma unroll
      for (int i = 0; i < kVector; ++i) v[pass][i] = v[pass][i] * factor * gain[i];
    }
  }
  if (p.hadamard > 0) {
    hadamard<kPasses>(v, p.hadamard, p.width, transform);
    const float norm = rsqrtf(static_cast<float>(p.hadamard));
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass)
#pragma unroll
      for (int i = 0; i < kVector; ++i) v[pass][i] *= norm;
  }

  const bool whole_row = p.groups == 1;
  const int lanes = min(32, p.group / kVector);  // of a group, where it is not the whole row
  const auto write = [&](const float(&x)[kVector], int column, DeviceGroup group) {
    const int shift = shift_of(group.zero, p.bits);
    if (whole_row ? column == 0 : column % p.group == 0) {
      const int64_t at = column / p.group * p.token_stride + token;
      p.scale[at] = group.scale;
      p.zero[at] = group.zero - shift;
    }
    const float reciprocal = group_reciprocal(group.scale);
    uint32_t packed[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const uint32_t code = (quantize_value_device(x[i], group, reciprocal, p.bits) - shift) & 255;
      if (column + i < p.width) packed[i / 4] |= code << i % 4 * 8;
    }
    *reinterpret_cast<uint2*>(p.codes + token * p.code_stride + column) = make_uint2(packed[0], packed[1]);
  };
  float row_low = INFINITY, row_high = -INFINITY;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int column = first_column + (pass * blockDim.x + threadIdx.x) * kVector;
    float low = INFINITY, high = -INFINITY, poison = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (column + i >= p.width) break;
      poison = fmaf(v[pass][i], 0.0f, poison);  // NaN where a value is not finite
      low = fminf(low, v[pass][i]);
      high = fmaxf(high, v[pass][i]);
    }
    if (p.bad != nullptr && kSource != Source::RmsNorm && poison != 0)
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        if (column + i < p.width && !isfinite(v[pass][i]))
          atomicMin(p.bad, static_cast<unsigned long long>(token * p.width + column + i));
    row_low = fminf(row_low, low);
    row_high = fmaxf(row_high, high);
    if (whole_row) continue;
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      low = fminf(low, __shfl_xor_sync(~0u, low, distance));
      high = fmaxf(high, __shfl_xor_sync(~0u, high, distance));
    }
    if (column < p.width)
      write(v[pass], column, quantize_group_device(low, high, p.bits, p.symmetric, false));
  }
  if (!whole_row) return;
  row_low = block_reduce(row_low, INFINITY, reduced, [](float a, float b) { return fminf(a, b); });
  row_high = block_reduce(row_high, -INFINITY, reduced, [](float a, float b) { return fmaxf(a, b); });
  const DeviceGroup group = quantize_group_device(row_low, row_high, p.bits, p.symmetric, p.group > 256);
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int column = first_column + (pass * blockDim.x + threadIdx.x) * kVector;
    if (column < p.width) write(v[pass], column, group);
  }
}

template <typename T, Source kSource>
void run(const T* x, int64_t stride, float epsilon, const RowOptions& options, DeviceActivations& out,
         cudaStream_t stream, bool overlap) {
  const ActivationPolicy& policy = options.policy;
  require(policy.bits == 4 || policy.bits == 8, "GPU quantiser: {} bits; it takes 4 or 8", policy.bits);
  require(out.groups == 1 || out.group == 32 || out.group == 64 || out.group == 128 || out.group == 256,
          "GPU quantiser: groups of {} columns; it takes 32, 64, 128, 256 or the whole row of {}", out.group,
          out.width);
  const int order = options.hadamard;
  require(order == 0 || (order >= kVector && std::has_single_bit(static_cast<unsigned>(order)) &&
                         out.width % order == 0),
          "GPU quantiser: a Hadamard transform of order {} over {} columns; it takes powers of two from {} "
          "that divide them",
          order, out.width, kVector);
  require(options.add == nullptr || (kSource == Source::RmsNorm && options.sum != nullptr),
          "GPU quantiser: an addition needs an RMSNorm after it and a place for the sums");
  const int64_t vectors = (out.width + kVector - 1) / kVector;
  require(vectors <= 4 * kMaxThreads, "GPU quantiser: rows of {} values; it takes up to {}", out.width,
          4 * kMaxThreads * kVector);
  // Where nothing spans a row, several blocks share it: one token fills the GPU sooner.
  const bool shared_row = kSource != Source::RmsNorm && out.groups > 1 && order <= kThreadsOfPart;
  const int passes = shared_row || vectors <= kMaxThreads / 2 ? 1 : vectors <= 2 * kMaxThreads ? 2 : 4;
  const auto threads = shared_row ? static_cast<unsigned>(kThreadsOfPart)
                                  : static_cast<unsigned>(((vectors + passes - 1) / passes + 31) / 32 * 32);
  const RowParams params{options.gain,
                         epsilon,
                         static_cast<int>(out.width),
                         static_cast<int>(out.group),
                         static_cast<int>(out.groups),
                         policy.bits,
                         order,
                         policy.symmetric,
                         options.gelu,
                         options.add,
                         options.sum,
                         options.bad,
                         out.codes.data(),
                         out.scale.data(),
                         out.zero.data(),
                         stride,
                         out.stride,
                         out.token_stride};
  if (out.tokens == 0) return;
  const auto kernel = passes == 1   ? quantize_kernel<T, kSource, 1>
                      : passes == 2 ? quantize_kernel<T, kSource, 2>
                                    : quantize_kernel<T, kSource, 4>;
  const size_t shared = order > 32 * kVector ? static_cast<size_t>(out.width) * sizeof(float) : 0;
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
  cuda_check(cudaLaunchKernelEx(&config, kernel, x, params), "quantiser");
}

}  // namespace

template <typename T>
void quantize_rows(const T* x, int64_t stride, const RowOptions& options, DeviceActivations& out,
                   cudaStream_t stream, bool overlap) {
  run<T, Source::Plain>(x, stride, 0.0f, options, out, stream, overlap);
}
template <typename T>
void rms_norm_quantize(const T* x, int64_t stride, float epsilon, const RowOptions& options,
                       DeviceActivations& out, cudaStream_t stream, bool overlap) {
  run<T, Source::RmsNorm>(x, stride, epsilon, options, out, stream, overlap);
}
template <typename T>
void silu_mul_quantize(const T* x, int64_t stride, const RowOptions& options, DeviceActivations& out,
                       cudaStream_t stream, bool overlap) {
  run<T, Source::SiluMul>(x, stride, 0.0f, options, out, stream, overlap);
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
