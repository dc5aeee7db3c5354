// Copies from global to shared memory in the background, from compute capability 8.0 on (PTX ISA,
// "cp.async").
#pragma once

#include <cstdint>

namespace quatrain::ops::ptx {

/// 16 bytes, past L1; `to` is an address in shared memory, both are multiples of 16.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/// Closes a group over all copies that this thread has begun since the group before.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most kPending of this thread's groups are still under way.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace quatrain::ops::ptx
