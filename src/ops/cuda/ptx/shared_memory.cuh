// Shared memory by 32-bit addresses. From generic pointers the compiler computes the base of a CTA's window
// within its cluster anew (SR_CgaCtaId) wherever it uses one; an address taken once stays in a register.
#pragma once

#include <cstdint>

namespace quatrain::ops::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// The first multiple of `alignment` (a power of two) in dynamic shared memory, as a value of its own.
__device__ __forceinline__ uint32_t shared_base(const void* pointer, uint32_t alignment) {
  uint32_t at = (shared_address(pointer) + alignment - 1) & ~(alignment - 1);
  asm volatile("" : "+r"(at));
  return at;
}

/// Loads and stores of T there; the compiler sees through the cast to shared memory.
template <typename T>
__device__ __forceinline__ T load_shared(uint32_t address) {
  return *static_cast<const T*>(__cvta_shared_to_generic(address));
}
template <typename T>
__device__ __forceinline__ void store_shared(uint32_t address, T value) {
  *static_cast<T*>(__cvta_shared_to_generic(address)) = value;
}

/// Stores four 8 x 8 matrices of 16-bit elements: lanes 8 i ... 8 i + 7 name the rows (16 bytes) of matrix i,
/// lane l holds elements 2 (l % 4) + {0, 1} of row l / 4 of each.
__device__ __forceinline__ void store_matrices(uint32_t row, const uint32_t* d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(d[0]),
               "r"(d[1]), "r"(d[2]), "r"(d[3])
               : "memory");
}

/// The same place in the shared memory of CTA `cta` of the cluster.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t cta) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(cta));
  return remote;
}

/// Stores there, completing on a barrier of the same CTA's (both cluster addresses).
__device__ __forceinline__ void store_cluster(uint32_t address, float4 x, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          address),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_cluster(uint32_t address, float2 x, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(address),
      "f"(x.x), "f"(x.y), "r"(barrier)
      : "memory");
}

}  // namespace quatrain::ops::ptx
