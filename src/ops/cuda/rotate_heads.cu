#include "ops/cuda/dependent_launch.h"
#include "ops/cuda/kv_store.cuh"
#include "ops/cuda/ptx/launch.cuh"
#include "ops/cuda/rotate_head.cuh"

namespace quatrain::ops {
namespace {

constexpr int kWarps = 4;
constexpr int kLargestHead = 256;

__global__ void factors_kernel(const int32_t* lengths, int64_t count, const float* frequencies, int half,
                               float scale, float* cosine, float* sine) {
  const int64_t i = blockIdx.x * int64_t{128} + threadIdx.x;
  if (i >= count) return;
  const float angle = __fmul_rn(static_cast<float>(lengths[i / half] - 1), frequencies[i % half]);
  double s, c;
  sincos(static_cast<double>(angle), &s, &c);
  cosine[i] = __fmul_rn(static_cast<float>(c), scale);
  sine[i] = __fmul_rn(static_cast<float>(s), scale);
}

struct Destination {
  DeviceKvLayout layout;
  uint8_t* pages = nullptr;  // null: k stays where it is
  KvRows rows;
  unsigned long long* bad = nullptr;
};

// One warp a (row, head): of q and k, or of q, k and v.
__global__ void rotate_kernel(HeadRotation p, Destination to, float* x, int64_t count, int64_t stride) {
  __shared__ float shared[kWarps][kLargestHead];
  ptx::allow_next_kernel();
  ptx::wait_for_previous_kernel();
  const int lane = threadIdx.x % 32, dim = static_cast<int>(p.head_dim);
  const int64_t item = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (item >= count) return;
  const bool append = to.pages != nullptr;
  const int64_t all = p.heads + (append ? 2 : 1) * p.kv_heads, row = item / all, head = item % all;
  float* at = x + row * stride + head * dim;
  float* v = shared[threadIdx.x / 32];
  // Where the head's part of the token's page begins, and what the warp does with its k or v there.
  const auto store = [&](int which, const float* from) {
    const int kv_head = static_cast<int>((head - p.heads) % p.kv_heads);
    const int token = to.rows.lengths[row] - 1;
    const int page = to.rows.pages_of(static_cast<int>(row))[token / kKvPageTokens];
    const bool good = store_head(to.layout, to.pages + to.layout.at(page, kv_head), which,
                                 token % kKvPageTokens, from, lane);
    if (to.bad != nullptr && !good)
      atomicMin(to.bad, static_cast<unsigned long long>(row * p.kv_heads + kv_head));
  };
  if (head >= p.heads + p.kv_heads) return store(1, at);
  rotate_head(p, row, head < p.heads, at, v, lane);
  if (append && head >= p.heads) return store(0, v);
  for (int k = lane; k < dim; k += 32) at[k] = v[k];
}

void launch(const HeadRotation& rotation, const Destination& to, float* x, int64_t rows, int64_t stride,
            cudaStream_t stream) {
  require(rotation.head_dim <= kLargestHead, "GPU rotary embedding: heads of {} columns; it takes up to {}",
          rotation.head_dim, kLargestHead);
  const int64_t count = rows * (rotation.heads + (to.pages != nullptr ? 2 : 1) * rotation.kv_heads);
  if (count == 0) return;
  launch_dependent(rotate_kernel, static_cast<unsigned>((count + kWarps - 1) / kWarps), kWarps * 32, 0,
                   stream, "rotary embedding", rotation, to, x, count, stride);
}

}  // namespace

void rope_factors(const int32_t* lengths, int64_t rows, const float* inverse_frequencies, int64_t half,
                  float scale, float* cosine, float* sine, cudaStream_t stream) {
  if (rows * half == 0) return;
  factors_kernel<<<static_cast<unsigned>((rows * half + 127) / 128), 128, 0, stream>>>(
      lengths, rows * half, inverse_frequencies, static_cast<int>(half), scale, cosine, sine);
  cuda_check(cudaGetLastError(), "RoPE factors");
}

void rotate_heads(const HeadRotation& rotation, float* x, int64_t rows, int64_t stride, cudaStream_t stream) {
  launch(rotation, {}, x, rows, stride, stream);
}

void rotate_heads_and_append(const HeadRotation& rotation, float* x, int64_t stride,
                             const DeviceKvLayout& layout, uint8_t* pages, const KvRows& rows,
                             unsigned long long* bad, cudaStream_t stream) {
  check_kv_layout(layout);
  launch(rotation, {layout, pages, rows, bad}, x, rows.rows, stride, stream);
}

}  // namespace quatrain::ops
