// Barriers in shared memory on which copies and warps count arrivals (PTX ISA, "mbarrier"), by address.
#pragma once

#include "ops/cuda/ptx/shared_memory.cuh"

namespace quatrain::ops::ptx {

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/// Makes initialised barriers visible to the copy engine and to the other CTAs of the cluster.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// One arrival that also announces `bytes` of copies to come.
__device__ __forceinline__ void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// Announces `bytes` of copies without an arrival.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives on a barrier of any CTA of the cluster, named by its cluster_address.
__device__ __forceinline__ void barrier_arrive_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Waits until the phase of this parity has completed.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n .reg .pred done;\nWAIT_%=:\n"
      " mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      " @!done bra WAIT_%=;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Whether it has, without waiting: 1 or 0.
__device__ __forceinline__ uint32_t barrier_test(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n .reg .pred done;\n"
      " mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      " selp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done;
}

/// Waits unless a test before said that the phase has completed.
__device__ __forceinline__ void barrier_wait_unless(uint32_t done, uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n .reg .pred done;\n setp.ne.u32 done, %2, 0;\n @done bra DONE_%=;\nWAIT_%=:\n"
      " mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      " @!done bra WAIT_%=;\nDONE_%=:\n}" ::"r"(barrier),
      "r"(parity), "r"(done)
      : "memory");
}

}  // namespace quatrain::ops::ptx
