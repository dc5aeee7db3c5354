// wgmma m64 nN k32, INT32 += s8 (A, registers) x s8 (B, shared memory, K-major with 128-byte swizzle).
//
// Fragments (PTX ISA, "wgmma.mma_async ... m64nNk32"), lane l of warp w: A register q holds row
// 16 w + l/4 + 8 (q % 2), columns 16 (q / 2) + 4 (l % 4) ... + 3; accumulator 4 j + i holds row
// 16 w + l/4 + 8 (i / 2), column 8 j + 2 (l % 4) + i % 2.
#pragma once

#include <cstdint>

namespace quatrain::ops::ptx {

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending committed groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// The low half of the descriptor of a B tile of rows of 128 bytes, swizzled as the tensor map writes them.
/// Adding 2 moves on by 32 columns.
__device__ __forceinline__ uint32_t wgmma_descriptor(uint32_t shared_address) {
  return (shared_address & 0x3FFFF) >> 4 | 1u << 16;
}
/// The high half: groups of 8 rows lie 1,024 bytes apart, 128-byte swizzle.
inline constexpr uint32_t kWgmmaDescriptorHigh = 1024 >> 4 | 1u << 30;

// d = a b + (accumulate ? d : 0); b is the low half of the tile's descriptor
__device__ __forceinline__ void wgmma(int (&d)[8], const uint32_t* a, uint32_t b, bool accumulate) {
  asm volatile(
      "{\n .reg .pred accumulate;\n .reg .b64 tile;\n setp.ne.b32 accumulate, %13, 0;\n mov.b64 tile, {%12, "
      "%14};\n"
      " wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%8, %9, %10, %11}, tile, accumulate;\n}"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(static_cast<int>(accumulate)),
        "r"(kWgmmaDescriptorHigh));
}

__device__ __forceinline__ void wgmma(int (&d)[16], const uint32_t* a, uint32_t b, bool accumulate) {
  asm volatile(
      "{\n .reg .pred accumulate;\n .reg .b64 tile;\n setp.ne.b32 accumulate, %21, 0;\n mov.b64 tile, {%20, "
      "%22};\n"
      " wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, tile, accumulate;\n}"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
        "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(static_cast<int>(accumulate)),
        "r"(kWgmmaDescriptorHigh));
}

__device__ __forceinline__ void wgmma(int (&d)[32], const uint32_t* a, uint32_t b, bool accumulate) {
  asm volatile(
      "{\n .reg .pred accumulate;\n .reg .b64 tile;\n setp.ne.b32 accumulate, %37, 0;\n mov.b64 tile, {%36, "
      "%38};\n"
      " wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, tile, accumulate;\n}"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
        "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]),
        "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]),
        "+r"(d[23]), "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]),
        "+r"(d[30]), "+r"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(static_cast<int>(accumulate)),
        "r"(kWgmmaDescriptorHigh));
}

/// Both operands from shared memory, [64, 32] x [128, 32]: a and b are low halves of descriptors.
__device__ __forceinline__ void wgmma(int (&d)[64], uint32_t a, uint32_t b, bool accumulate) {
  asm volatile(
      "{\n .reg .pred accumulate;\n .reg .b64 left, right;\n setp.ne.b32 accumulate, %66, 0;\n"
      " mov.b64 left, {%64, %67};\n mov.b64 right, {%65, %67};\n"
      " wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
      "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, left, right, accumulate;\n}"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
        "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]),
        "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]),
        "+r"(d[23]), "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]),
        "+r"(d[30]), "+r"(d[31]), "+r"(d[32]), "+r"(d[33]), "+r"(d[34]), "+r"(d[35]), "+r"(d[36]),
        "+r"(d[37]), "+r"(d[38]), "+r"(d[39]), "+r"(d[40]), "+r"(d[41]), "+r"(d[42]), "+r"(d[43]),
        "+r"(d[44]), "+r"(d[45]), "+r"(d[46]), "+r"(d[47]), "+r"(d[48]), "+r"(d[49]), "+r"(d[50]),
        "+r"(d[51]), "+r"(d[52]), "+r"(d[53]), "+r"(d[54]), "+r"(d[55]), "+r"(d[56]), "+r"(d[57]),
        "+r"(d[58]), "+r"(d[59]), "+r"(d[60]), "+r"(d[61]), "+r"(d[62]), "+r"(d[63])
      : "r"(a), "r"(b), "r"(static_cast<int>(accumulate)), "r"(kWgmmaDescriptorHigh));
}

}  // namespace quatrain::ops::ptx
