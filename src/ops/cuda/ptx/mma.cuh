// mma.sync: one warp's matrix product, operands in registers (PTX ISA, "mma.m16n8k32", "mma.m16n8k16").
#pragma once

#include <cstdint>

namespace quatrain::ops::ptx {

/// d [16 x 8] += a [16 x 32] b [32 x 8], s8 in, INT32 out. Lane l holds of a: rows l/4 (a0, a2) and l/4 + 8
/// (a1, a3), columns 4 (l % 4) ... + 3 (a0, a1) and 16 on (a2, a3); of b: column l/4, the same rows as a's
/// columns; of d: rows l/4 (d0, d1) and l/4 + 8 (d2, d3), columns 2 (l % 4) + {0, 1}.
__device__ __forceinline__ void mma(int (&d)[4], const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// d [16 x 8] += a [16 x 16] b [16 x 8], FP16 in, FP32 out. Lane l holds of a: rows l/4 (a0, a2) and l/4 + 8
/// (a1, a3), columns 2 (l % 4) + {0, 1} (a0, a1) and 8 on (a2, a3); of b: column l/4, the same rows as a's
/// columns; of d as above.
__device__ __forceinline__ void mma_half(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Transposes an 8 x 8 matrix of 16-bit elements held like d's upper half, two columns a register.
__device__ __forceinline__ uint32_t transpose_halves(uint32_t a) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}

/// Four 8 x 8 matrices of 16-bit elements from shared memory: lanes 8 i ... 8 i + 7 name the rows (16 bytes)
/// of matrix i, lane l gets elements 2 (l % 4) + {0, 1} of row l / 4 of each. With kTranspose, of column l
/// / 4.
template <bool kTranspose>
__device__ __forceinline__ void load_matrices(uint32_t (&d)[4], const void* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTranspose)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(at));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(at));
}

}  // namespace quatrain::ops::ptx
