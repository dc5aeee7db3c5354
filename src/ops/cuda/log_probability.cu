#include "ops/cuda/error.h"
#include "ops/cuda/log_probability.h"

namespace quatrain::ops {
namespace {

constexpr int kThreads = 512;

// A maximum and the sum of exp(x - maximum), of some of a row.
struct Partial {
  float top, sum;
};

__device__ Partial join(Partial a, Partial b) {
  // A NaN must survive: fmaxf would drop it, the sum keeps it.
  const float top = fmaxf(a.top, b.top);
  const auto scaled = [&](Partial p) { return p.top == -INFINITY ? p.sum : p.sum * expf(p.top - top); };
  return {top, scaled(a) + scaled(b)};
}

__global__ void log_probability_kernel(const float* x, int width, const int32_t* targets, float* out) {
  __shared__ Partial of_warp[kThreads / 32];
  const float* row = x + int64_t{blockIdx.x} * width;
  float top = -INFINITY;
  for (int j = threadIdx.x; j < width; j += kThreads) top = fmaxf(top, row[j]);
  Partial mine{top, 0};
  for (int j = threadIdx.x; j < width; j += kThreads) mine.sum += expf(row[j] - top);
  for (int lane = 16; lane > 0; lane /= 2)
    mine = join(mine, {__shfl_xor_sync(~0u, mine.top, lane), __shfl_xor_sync(~0u, mine.sum, lane)});
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreads / 32; ++warp) mine = join(mine, of_warp[warp]);
  out[blockIdx.x] = row[targets[blockIdx.x]] - mine.top - logf(mine.sum);
}

}  // namespace

void log_probability_rows(const float* x, int64_t rows, int64_t width, const int32_t* targets, float* out,
                          cudaStream_t stream) {
  if (rows == 0) return;
  log_probability_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(x, static_cast<int>(width),
                                                                               targets, out);
  cuda_check(cudaGetLastError(), "log probabilities");
}

}  // namespace quatrain::ops
