// Nibbles to wgmma / mma A fragments.
#pragma once

#include <cstdint>

namespace quatrain::ops {

/// 16 A registers of 16 rows x 128 columns a warp from 8 words of hi nibbles: 16 * hi as signed bytes.
__device__ __forceinline__ void widen(const uint4& low, const uint4& high, uint32_t (&a)[16]) {
  const uint32_t x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = x[i] & 0xF0F0F0F0u;
    a[2 * i + 1] = (x[i] << 4) & 0xF0F0F0F0u;
  }
}

/// The same plus the lo nibbles of a residual block: 16 * hi + lo, one bit-select more.
__device__ __forceinline__ void widen(const uint4& low, const uint4& high, const uint4& lo_low,
                                      const uint4& lo_high, uint32_t (&a)[16]) {
  const uint32_t x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const uint32_t l[8] = {lo_low.x, lo_low.y, lo_low.z, lo_low.w, lo_high.x, lo_high.y, lo_high.z, lo_high.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = (x[i] & 0xF0F0F0F0u) | (l[i] & 0x0F0F0F0Fu);
    a[2 * i + 1] = ((x[i] << 4) & 0xF0F0F0F0u) | ((l[i] >> 4) & 0x0F0F0F0Fu);
  }
}

}  // namespace quatrain::ops
