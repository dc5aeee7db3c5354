// mma.sync on 4-bit operands (PTX ISA, "mma.m16n8k64" and "mma.m16n8k32" with .u4 and .s4): native on compute
// capability 8.x, emulated from 9.0 on.
//
// Fragments, lane l: of a, row l/4 (a0, a2) and l/4 + 8 (a1, a3), columns 8 (l % 4) ... + 7 (a0, a1) and 32
// on (a2, a3), the first in the lowest bits; of b, column l/4, the same rows as a's columns; of d as in
// mma.cuh. The 32-column form has a0, a1 and one register of b.
#pragma once

#include <cstdint>

namespace quatrain::ops::ptx {

/// d = a b + c over 64 columns; a is s4 (kSigned) or u4, b is u4.
template <bool kSigned>
__device__ __forceinline__ void mma_nibbles(int (&d)[4], const uint32_t* a, uint32_t b0, uint32_t b1,
                                            const int (&c)[4]) {
  if constexpr (kSigned)
    asm volatile(
        "mma.sync.aligned.m16n8k64.row.col.s32.s4.u4.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]),
          "r"(c[3]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k64.row.col.s32.u4.u4.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]),
          "r"(c[3]));
}

/// The same over 32 columns.
template <bool kSigned>
__device__ __forceinline__ void mma_nibbles(int (&d)[4], const uint32_t* a, uint32_t b, const int (&c)[4]) {
  if constexpr (kSigned)
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s4.u4.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %8, %9, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u4.u4.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %8, %9, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

}  // namespace quatrain::ops::ptx
