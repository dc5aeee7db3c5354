// Nibbles to wgmma / mma A fragments.
#pragma once

#include <cstdint>

namespace quatrain::ops {

/// The high nibbles of one word, the low nibbles of another. As one expression of two masks the compiler
/// makes two instructions of it.
__device__ __forceinline__ uint32_t select_nibbles(uint32_t high, uint32_t low) {
  uint32_t word;
  asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(word) : "r"(high), "r"(low), "r"(0xF0F0F0F0u));
  return word;
}

/// 8 registers of signed bytes, 16 * hi, from 4 words of hi nibbles: half of a warp's 16 rows x 128 columns.
__device__ __forceinline__ void widen(const uint4& dense, uint32_t* a) {
  const uint32_t x[4] = {dense.x, dense.y, dense.z, dense.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = x[i] & 0xF0F0F0F0u;
    a[2 * i + 1] = (x[i] << 4) & 0xF0F0F0F0u;
  }
}

/// The same plus the lo nibbles of a residual block: 16 * hi + lo, one bit-select more.
__device__ __forceinline__ void widen(const uint4& dense, const uint4& residual, uint32_t* a) {
  const uint32_t x[4] = {dense.x, dense.y, dense.z, dense.w};
  const uint32_t l[4] = {residual.x, residual.y, residual.z, residual.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = select_nibbles(x[i], l[i]);
    a[2 * i + 1] = select_nibbles(x[i] << 4, l[i] >> 4);
  }
}

}  // namespace quatrain::ops
