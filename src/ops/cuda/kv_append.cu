#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/dependent_launch.h"
#include "ops/cuda/group_quantizer.cuh"
#include "ops/cuda/kv_pages.h"
#include "ops/cuda/ptx/launch.cuh"

namespace quatrain::ops {
namespace {

// kv_group() of ops/kv_cache.cpp: the scale is rounded to FP16 before the zero is formed, and goes up one
// step where the zero would leave int16.
__device__ DeviceGroup kv_group_device(float low, float high, int bits, bool symmetric, bool force_zero) {
  constexpr float kLeastScale = 0x1p-24f;
  const DeviceGroup exact = quantize_group_device(low, high, bits, symmetric, force_zero);
  if (fmaxf(fabsf(low), fabsf(high)) == 0) return exact;
  if (force_zero) low = fminf(low, 0.0f);
  unsigned short half = __half_as_ushort(__float2half_rn(fmaxf(exact.scale, kLeastScale)));
  float scale = __half2float(__ushort_as_half(half));
  if (symmetric) return {scale, exact.zero};
  float zero = rintf(__fdiv_rn(-low, scale));
  if (fabsf(zero) > 32767.0f) {
    scale = __half2float(__ushort_as_half(++half));
    zero = rintf(__fdiv_rn(-low, scale));
  }
  return {scale, isfinite(scale) ? static_cast<int>(zero) : 0};
}

// One warp a (row, head, key or value); a lane takes pairs of columns, group after group.
template <typename T>
__global__ void append_kernel(DeviceKvLayout layout, uint8_t* pages, KvRows rows, const T* key,
                              const T* value, int64_t stride, unsigned long long* bad) {
  ptx::allow_next_kernel();
  ptx::wait_for_previous_kernel();
  const int lane = threadIdx.x % 32, which = threadIdx.x / 32;
  const int row = blockIdx.x / layout.kv_heads, head = blockIdx.x % layout.kv_heads;
  const int token = rows.lengths[row] - 1;
  const int page = rows.pages_of(row)[token / kKvPageTokens];
  const int slot = token % kKvPageTokens;
  const T* from = (which == 0 ? key : value) + row * stride + head * layout.head_dim;
  uint8_t* at = pages + layout.at(page, head);
  uint8_t* codes = at + which * layout.codes_bytes() + slot * layout.token_bytes();
  bool good = true;
  if (layout.bits == 16) {
    for (int k = 2 * lane; k < layout.head_dim; k += 64) {
      const float a = from[k], b = from[k + 1];
      const __half2 pair = __floats2half2_rn(a, b);
      good = good && isfinite(__low2float(pair)) && isfinite(__high2float(pair));
      reinterpret_cast<__half2*>(codes)[k / 2] = pair;
    }
  } else {
    const int width = layout.group_columns(), groups = layout.groups();
    auto* pairs =
        reinterpret_cast<uint32_t*>(at + 2 * layout.codes_bytes()) + (which * kKvPageTokens + slot) * groups;
    for (int g = 0; g < groups; ++g) {
      const int first = g * width, last = min(first + width, layout.head_dim);
      float low = INFINITY, high = -INFINITY;
      for (int k = first + 2 * lane; k < last; k += 64) {
        const float a = from[k], b = from[k + 1];
        good = good && isfinite(a) && isfinite(b);
        low = fminf(low, fminf(a, b));
        high = fmaxf(high, fmaxf(a, b));
      }
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) {
        low = fminf(low, __shfl_xor_sync(~0u, low, distance));
        high = fmaxf(high, __shfl_xor_sync(~0u, high, distance));
      }
      const DeviceGroup group = kv_group_device(low, high, layout.bits, layout.symmetric, width > 256);
      good = good && isfinite(group.scale);
      const float reciprocal = group_reciprocal(group.scale);
      for (int k = first + 2 * lane; k < last; k += 64) {
        const int a = quantize_value_device(from[k], group, reciprocal, layout.bits);
        const int b = quantize_value_device(from[k + 1], group, reciprocal, layout.bits);
        if (layout.bits == 4)
          codes[k / 2] = static_cast<uint8_t>(a | b << 4);
        else
          reinterpret_cast<uchar2*>(codes)[k / 2] =
              make_uchar2(static_cast<uint8_t>(a), static_cast<uint8_t>(b));
      }
      if (lane == 0)
        pairs[g] = __half_as_ushort(__float2half_rn(group.scale)) | static_cast<uint32_t>(group.zero & 0xFFFF)
                                                                        << 16;
    }
  }
  if (bad != nullptr && !good) atomicMin(bad, static_cast<unsigned long long>(blockIdx.x));
}

}  // namespace

template <typename T>
void kv_append(const DeviceKvLayout& layout, uint8_t* pages, const KvRows& rows, const T* key, const T* value,
               int64_t stride, unsigned long long* bad, cudaStream_t stream) {
  require(layout.bits == 4 || layout.bits == 8 || layout.bits == 16,
          "GPU KV cache: {} bits; it takes 4, 8 or 16", layout.bits);
  require(
      layout.head_dim % 2 == 0 && layout.head_dim > 0 && layout.head_dim <= 256 &&
          layout.group_columns() % 2 == 0,
      "GPU KV cache: heads of {} columns in groups of {}; it takes even heads of up to 256 and even groups",
      layout.head_dim, layout.group_columns());
  if (rows.rows == 0) return;
  launch_dependent(append_kernel<T>, static_cast<unsigned>(rows.rows * layout.kv_heads), 64, 0, stream,
                   "KV append", layout, pages, rows, key, value, stride, bad);
}

template void kv_append(const DeviceKvLayout&, uint8_t*, const KvRows&, const float*, const float*, int64_t,
                        unsigned long long*, cudaStream_t);
template void kv_append(const DeviceKvLayout&, uint8_t*, const KvRows&, const __nv_bfloat16*,
                        const __nv_bfloat16*, int64_t, unsigned long long*, cudaStream_t);

}  // namespace quatrain::ops
