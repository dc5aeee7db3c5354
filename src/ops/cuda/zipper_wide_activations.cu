#include <algorithm>

#include "ops/cuda/ptx/launch.cuh"
#include "ops/cuda/zipper_launch.h"
#include "ops/cuda/zipper_matrix.h"
#include "ops/cuda/zipper_wide_activations.h"

namespace quatrain::ops {
namespace {

constexpr int kTokenWarps = 4, kTokens = 2;  // of a block
constexpr int kPassLoads = 2;                // of 16 bytes a lane, in flight at once
constexpr int kStepLanes = 8;                // lanes of a step
constexpr int kPassSteps = 32 / kStepLanes;

struct WideOutput {
  int64_t token_stride;
  uint8_t* codes;
  float* scale;
  __half* zero;
  float2* token;
};

// The least of the four unsigned bytes of a word, and of the two 16-bit numbers of `least`.
__device__ __forceinline__ uint32_t least_bytes(uint32_t least, uint32_t word) {
  return __vminu2(least, __vminu2(word & 0x00FF00FFu, word >> 8 & 0x00FF00FFu));
}

__global__ void __launch_bounds__(kTokenWarps* kTokens * 32)
    wide_activations_kernel(const int8_t* codes, const float* scale, const int32_t* zero, int64_t stride,
                            int64_t token_stride, int tokens, int width, int group, int groups,
                            WideOutput out) {
  ptx::allow_next_kernel();
  ptx::wait_for_previous_kernel();
  __shared__ double offsets[kTokens][kTokenWarps];
  const int warp = threadIdx.x / 32 % kTokenWarps, which = threadIdx.x / 32 / kTokenWarps;
  const int token = min(static_cast<int>(blockIdx.x) * kTokens + which, tokens - 1);  // the last one twice
  const int lane = threadIdx.x % 32, part = lane % kStepLanes;
  const int steps = static_cast<int>(stride / kStepColumns);
  float most = 0;
  for (int g = lane; g < groups; g += 32) most = fmaxf(most, scale[g * token_stride + token]);
  for (int distance = 16; distance > 0; distance /= 2)
    most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
  int exponent;
  frexpf(most, &exponent);
  const float reciprocal = ldexpf(1.0f, -exponent);
  const int zero_steps = (steps + kZeroSteps - 1) / kZeroSteps;
  __half* zeros = out.zero + static_cast<int64_t>(token) * zero_steps * 2 * kZeroSteps;
  double offset = 0;
  for (int first = warp * kPassLoads * kPassSteps; first < steps;
       first += kTokenWarps * kPassLoads * kPassSteps) {
    uint4 loaded[kPassLoads];
    float scales[kPassLoads];
    int stored_zero[kPassLoads];
#pragma unroll
    for (int i = 0; i < kPassLoads; ++i) {
      const int step = first + i * kPassSteps + lane / kStepLanes;
      if (step >= steps) break;
      loaded[i] = *reinterpret_cast<const uint4*>(codes + token * stride + step * kStepColumns + part * 16);
      const int64_t at = min(step * kStepColumns / group, groups - 1) * token_stride + token;
      scales[i] = scale[at];
      stored_zero[i] = zero[at];
    }
#pragma unroll
    for (int i = 0; i < kPassLoads; ++i) {
      const int step = first + i * kPassSteps + lane / kStepLanes;
      const bool active = step < steps;
      uint32_t words[4] = {loaded[i].x, loaded[i].y, loaded[i].z, loaded[i].w};
      const int valid = active ? min(width - (step * kStepColumns + part * 16), 16) : 0;
#pragma unroll
      for (uint32_t& word : words) word ^= 0x80808080u;  // code + 128
      uint32_t pairs = 0x00FF00FFu;
      if (valid == 16) {
#pragma unroll
        for (const uint32_t word : words) pairs = least_bytes(pairs, word);
      } else {
        for (int b = 0; b < valid; ++b)
          pairs = least_bytes(pairs, (words[b / 4] >> b % 4 * 8 & 255u) * 0x01010101u);
      }
      uint32_t least = min(pairs & 0xFFFFu, pairs >> 16);
      for (int distance = kStepLanes / 2; distance > 0; distance /= 2)
        least = min(least, __shfl_xor_sync(~0u, least, distance));
      unsigned sum = 0;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        words[w] -= least * 0x01010101u;  // no byte borrows
        if (valid < 16) {
          const int past = min(max(4 * w + 4 - valid, 0), 4);  // bytes of the word that do not exist
          words[w] = past == 4 ? 0 : words[w] & ~0u >> 8 * past;
        }
        sum = __dp4a(words[w], 0x01010101u, sum);
      }
      for (int distance = kStepLanes / 2; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(~0u, sum, distance);
      if (!active) continue;
      *reinterpret_cast<uint4*>(out.codes + token * stride + step * kStepColumns + part * 16) =
          make_uint4(words[0], words[1], words[2], words[3]);
      if (part != 0) continue;
      const bool odd = step % 2 != 0;
      const float relative = scales[i] * reciprocal;
      out.scale[step * out.token_stride + token] = relative * (odd ? -0x1p126f : 0x1p126f);
      offset += static_cast<double>(relative) * static_cast<double>(sum) * (odd ? 127 : -128);
      const float u = relative * static_cast<float>(stored_zero[i] + 128 - static_cast<int>(least));
      const __half upper = __float2half_rn(u);
      __half* to = zeros + step / kZeroSteps * 2 * kZeroSteps + step % kZeroSteps;
      to[0] = upper;
      to[kZeroSteps] = __float2half_rn(u - __half2float(upper));
    }
  }
  for (int step = steps + warp * 32 + lane; step < zero_steps * kZeroSteps; step += 32 * kTokenWarps) {
    __half* to = zeros + step / kZeroSteps * 2 * kZeroSteps + step % kZeroSteps;
    to[0] = to[kZeroSteps] = __float2half_rn(0.0f);
  }
  for (int distance = kStepLanes; distance < 32; distance *= 2)
    offset += __shfl_xor_sync(~0u, offset, distance);
  if (lane == 0) offsets[which][warp] = offset;
  __syncthreads();
  if (threadIdx.x % (32 * kTokenWarps) != 0) return;
  offset = 0;
  for (const double part_of_row : offsets[which]) offset += part_of_row;
  out.token[token] = make_float2(static_cast<float>(offset * 0x1p-23), ldexpf(1.0f, exponent + 23));
}

}  // namespace

WideActivations::WideActivations(int64_t tokens, int64_t columns)
    : capacity(tokens),
      widest((columns + kStepColumns - 1) / kStepColumns * kStepColumns),
      token_stride((tokens + 127) / 128 * 128) {
  const int64_t steps = widest / kStepColumns, zero_steps = (steps + kZeroSteps - 1) / kZeroSteps;
  codes = DeviceBuffer<uint8_t>(static_cast<size_t>(tokens * widest));
  scale = DeviceBuffer<float>(static_cast<size_t>(steps * token_stride));
  zero = DeviceBuffer<__half>(static_cast<size_t>(tokens * zero_steps * 2 * kZeroSteps));
  token = DeviceBuffer<float2>(static_cast<size_t>(tokens));
}

bool WideActivations::holds(int64_t rows, int64_t columns) const {
  return rows <= capacity && columns <= widest;
}

void WideActivations::fill(const DeviceActivations& x, cudaStream_t stream, bool overlap) {
  require(holds(x.tokens, x.stride), "zipper GEMM: a workspace for {} tokens of {} columns, given {} of {}",
          capacity, widest, x.tokens, x.width);
  const WideOutput out{token_stride, codes.data(), scale.data(), zero.data(), token.data()};
  zipper::cluster_launch(
      wide_activations_kernel, static_cast<int>((x.tokens + kTokens - 1) / kTokens), 1,
      kTokenWarps * kTokens * 32, 0, stream, overlap, static_cast<const int8_t*>(x.codes.data()),
      static_cast<const float*>(x.scale.data()), static_cast<const int32_t*>(x.zero.data()), x.stride,
      x.token_stride, static_cast<int>(x.tokens), static_cast<int>(x.width), static_cast<int>(x.group),
      static_cast<int>(x.groups), out);
}

}  // namespace quatrain::ops
