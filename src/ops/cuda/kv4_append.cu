#include <cuda_fp16.h>

#include "ops/cuda/group_quantizer.cuh"
#include "ops/cuda/kv4_cache.h"

namespace quatrain::ops {
namespace {

// kv_group() of ops/kv_cache.cpp for 4 asymmetric bits: the scale is rounded to FP16 before the zero is
// formed, and goes up one step where the zero would leave int16.
__device__ DeviceGroup kv_group_device(float low, float high, bool force_zero) {
  constexpr float kLeastScale = 0x1p-24f;
  const DeviceGroup exact = quantize_group_device(low, high, 4, false, force_zero);
  if (fmaxf(fabsf(low), fabsf(high)) == 0) return exact;
  if (force_zero) low = fminf(low, 0.0f);
  unsigned short half = __half_as_ushort(__float2half_rn(fmaxf(exact.scale, kLeastScale)));
  float scale = __half2float(__ushort_as_half(half));
  float zero = rintf(__fdiv_rn(-low, scale));
  if (fabsf(zero) > 32767.0f) {
    scale = __half2float(__ushort_as_half(++half));
    zero = rintf(__fdiv_rn(-low, scale));
  }
  return {scale, isfinite(scale) ? static_cast<int>(zero) : 0};
}

// One warp a (sequence, head, key or value); a lane holds kValues neighbouring columns.
template <int kValues>
__global__ void append_kernel(Kv4Layout layout, uint8_t* pages, Kv4Sequences sequences,
                              const __nv_bfloat16* key, const __nv_bfloat16* value, int64_t stride,
                              unsigned long long* bad) {
  const int lane = threadIdx.x % 32, which = threadIdx.x / 32;
  const int sequence = blockIdx.x / layout.kv_heads, head = blockIdx.x % layout.kv_heads;
  const int token = sequences.lengths[sequence] - 1;
  const int page = sequences.page_table[sequence * sequences.max_pages + token / kKv4PageTokens];
  const int slot = token % kKv4PageTokens;
  const __nv_bfloat16* from =
      (which == 0 ? key : value) + sequence * stride + head * layout.head_dim + lane * kValues;
  float x[kValues], low = INFINITY, high = -INFINITY;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    x[i] = __bfloat162float(from[i]);
    finite = finite && isfinite(x[i]);
    low = fminf(low, x[i]);
    high = fmaxf(high, x[i]);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    low = fminf(low, __shfl_xor_sync(~0u, low, distance));
    high = fmaxf(high, __shfl_xor_sync(~0u, high, distance));
  }
  const DeviceGroup group = kv_group_device(low, high, layout.head_dim > 256);
  if (bad != nullptr && (!finite || !isfinite(group.scale)))
    atomicMin(bad, static_cast<unsigned long long>(blockIdx.x));
  const float reciprocal = group_reciprocal(group.scale);
  uint8_t* at = pages + page * layout.page_bytes() + head * layout.head_bytes();
  uint8_t* codes = at + which * layout.codes_bytes() + slot * layout.head_dim / 2 + lane * kValues / 2;
#pragma unroll
  for (int i = 0; i < kValues; i += 2)
    codes[i / 2] = static_cast<uint8_t>(quantize_value_device(x[i], group, reciprocal, 4) |
                                        quantize_value_device(x[i + 1], group, reciprocal, 4) << 4);
  if (lane == 0) {
    auto* pairs = reinterpret_cast<uint32_t*>(at + 2 * layout.codes_bytes()) + which * kKv4PageTokens;
    pairs[slot] = __half_as_ushort(__float2half_rn(group.scale)) | static_cast<uint32_t>(group.zero & 0xFFFF)
                                                                       << 16;
  }
}

}  // namespace

void kv4_append(const Kv4Layout& layout, uint8_t* pages, const Kv4Sequences& sequences,
                const __nv_bfloat16* key, const __nv_bfloat16* value, int64_t stride, unsigned long long* bad,
                cudaStream_t stream) {
  const int head_dim = layout.head_dim;
  require(head_dim == 64 || head_dim == 128 || head_dim == 256,
          "KV4: heads of {} columns; it takes 64, 128 or 256", head_dim);
  const auto kernel = head_dim == 64    ? append_kernel<2>
                      : head_dim == 128 ? append_kernel<4>
                                        : append_kernel<8>;
  kernel<<<static_cast<unsigned>(sequences.sequences * layout.kv_heads), 64, 0, stream>>>(
      layout, pages, sequences, key, value, stride, bad);
  cuda_check(cudaGetLastError(), "KV4 append");
}

}  // namespace quatrain::ops
