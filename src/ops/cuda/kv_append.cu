#include <cuda_bf16.h>

#include "ops/cuda/dependent_launch.h"
#include "ops/cuda/kv_pages.h"
#include "ops/cuda/kv_store.cuh"
#include "ops/cuda/ptx/launch.cuh"

namespace quatrain::ops {
namespace {

// One warp a (row, head, key or value).
template <typename T>
__global__ void append_kernel(DeviceKvLayout layout, uint8_t* pages, KvRows rows, const T* key,
                              const T* value, int64_t stride, unsigned long long* bad) {
  ptx::allow_next_kernel();
  ptx::wait_for_previous_kernel();
  const int lane = threadIdx.x % 32, which = threadIdx.x / 32;
  const int row = blockIdx.x / layout.kv_heads, head = blockIdx.x % layout.kv_heads;
  const int token = rows.lengths[row] - 1;
  const int page = rows.pages_of(row)[token / kKvPageTokens];
  const T* from = (which == 0 ? key : value) + row * stride + head * layout.head_dim;
  const bool good =
      store_head(layout, pages + layout.at(page, head), which, token % kKvPageTokens, from, lane);
  if (bad != nullptr && !good) atomicMin(bad, static_cast<unsigned long long>(blockIdx.x));
}

}  // namespace

void check_kv_layout(const DeviceKvLayout& layout) {
  require(layout.bits == 4 || layout.bits == 8 || layout.bits == 16,
          "GPU KV cache: {} bits; it takes 4, 8 or 16", layout.bits);
  require(
      layout.head_dim % 2 == 0 && layout.head_dim > 0 && layout.head_dim <= 256 &&
          layout.group_columns() % 2 == 0,
      "GPU KV cache: heads of {} columns in groups of {}; it takes even heads of up to 256 and even groups",
      layout.head_dim, layout.group_columns());
}

template <typename T>
void kv_append(const DeviceKvLayout& layout, uint8_t* pages, const KvRows& rows, const T* key, const T* value,
               int64_t stride, unsigned long long* bad, cudaStream_t stream) {
  check_kv_layout(layout);
  if (rows.rows == 0) return;
  launch_dependent(append_kernel<T>, static_cast<unsigned>(rows.rows * layout.kv_heads), 64, 0, stream,
                   "KV append", layout, pages, rows, key, value, stride, bad);
}

template void kv_append(const DeviceKvLayout&, uint8_t*, const KvRows&, const float*, const float*, int64_t,
                        unsigned long long*, cudaStream_t);
template void kv_append(const DeviceKvLayout&, uint8_t*, const KvRows&, const __nv_bfloat16*,
                        const __nv_bfloat16*, int64_t, unsigned long long*, cudaStream_t);

}  // namespace quatrain::ops
