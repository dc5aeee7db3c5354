// The bulk copy engine (TMA): global to shared memory, completion counted on an mbarrier, both by address.
#pragma once

#include <cuda.h>

#include "ops/cuda/ptx/mbarrier.cuh"

namespace quatrain::ops::ptx {

/// `bytes` contiguous bytes; both addresses and the size are multiples of 16.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

/// The same for data that is read once: first to leave L2.
__device__ __forceinline__ void bulk_copy_stream(uint32_t to, const void* from, uint32_t bytes,
                                                 uint32_t barrier) {
  constexpr uint64_t kEvictFirst = 0x12F0000000000000;  // the encoding of createpolicy.fractional.evict_first
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], "
      "%4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(kEvictFirst)
      : "memory");
}

/// One box of a 2-D tensor map at (x, y); outside the tensor reads zero.
__device__ __forceinline__ void tensor_copy(uint32_t to, const CUtensorMap* map, int x, int y,
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

/// The same box into every CTA of `mask`, at the same offsets, completing on each one's barrier.
__device__ __forceinline__ void tensor_copy_multicast(uint32_t to, const CUtensorMap* map, int x, int y,
                                                      uint32_t barrier, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask)
      : "memory");
}

/// Orders this thread's ordinary stores to shared memory before what wgmma and the copy engine do after the
/// next barrier.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void prefetch_l1(const void* from) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(from));
}

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

}  // namespace quatrain::ops::ptx
