#include "ops/cuda/fake_quantize.h"
#include "ops/cuda/group_quantizer.cuh"

namespace quatrain::ops {
namespace {

// One warp a (row, group).
__global__ void fake_quantize_kernel(float* x, int64_t width, int64_t group, int groups, int bits,
                                     bool symmetric, unsigned long long* bad) {
  const int64_t row = blockIdx.x / groups, first = blockIdx.x % groups * group;
  const int64_t last = first + group < width ? first + group : width;
  float low = INFINITY, high = -INFINITY;
  for (int64_t k = first + threadIdx.x; k < last; k += 32) {
    const float value = x[row * width + k];
    if (bad != nullptr && !isfinite(value)) atomicMin(bad, static_cast<unsigned long long>(row * width + k));
    low = fminf(low, value);
    high = fmaxf(high, value);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    low = fminf(low, __shfl_xor_sync(~0u, low, distance));
    high = fmaxf(high, __shfl_xor_sync(~0u, high, distance));
  }
  const DeviceGroup result = quantize_group_device(low, high, bits, symmetric, group > 256);
  const float reciprocal = group_reciprocal(result.scale);
  for (int64_t k = first + threadIdx.x; k < last; k += 32) {
    float& value = x[row * width + k];
    value = result.scale *
            static_cast<float>(quantize_value_device(value, result, reciprocal, bits) - result.zero);
  }
}

}  // namespace

void fake_quantize_rows(float* x, int64_t rows, int64_t width, const ActivationPolicy& policy,
                        unsigned long long* bad, cudaStream_t stream) {
  require(policy.bits == 4 || policy.bits == 8, "GPU quantiser: {} bits; it takes 4 or 8", policy.bits);
  if (rows == 0) return;
  const int64_t group = policy.group == 0 || policy.group > width ? width : policy.group;
  const int64_t groups = (width + group - 1) / group;
  fake_quantize_kernel<<<static_cast<unsigned>(rows * groups), 32, 0, stream>>>(
      x, width, group, static_cast<int>(groups), policy.bits, policy.symmetric, bad);
  cuda_check(cudaGetLastError(), "quantising rows");
}

}  // namespace quatrain::ops
