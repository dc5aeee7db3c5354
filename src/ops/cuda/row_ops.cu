#include <algorithm>
#include <vector>

#include "ops/cuda/row_ops.h"

namespace quatrain::ops {
namespace {

constexpr int kThreads = 256;
constexpr int kNormThreads = 512;
constexpr int kEmbedColumns = 1024;   // of a block
constexpr int kArgmaxColumns = 8192;  // of a block

__device__ __forceinline__ void store(float* to, float x) {
  *to = x;
}
__device__ __forceinline__ void store(__nv_bfloat16* to, float x) {
  *to = __float2bfloat16(x);
}

template <typename Out>
__global__ void norm_kernel(const float* x, const float* add, float* sum, int width, const float* gain,
                            float epsilon, Out* y, unsigned long long* bad) {
  __shared__ float partial[kNormThreads / 32];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * width;
  float squares = 0;
#pragma unroll 4
  for (int k = threadIdx.x; k < width; k += kNormThreads) {
    float value = x[first + k];
    if (add != nullptr) {
      value += add[first + k];
      sum[first + k] = value;
    }
    squares = fmaf(value, value, squares);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) squares += __shfl_xor_sync(~0u, squares, distance);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = squares;
  __syncthreads();
  squares = 0;
  for (int warp = 0; warp < kNormThreads / 32; ++warp) squares += partial[warp];
  const float* from = add == nullptr ? x : sum;
  if (bad != nullptr && !isfinite(squares)) {
    for (int k = threadIdx.x; k < width; k += kNormThreads)
      if (k + 1 == width || !isfinite(from[first + k]))
        atomicMin(bad, static_cast<unsigned long long>(first + k));
  }
  const float factor = rsqrtf(squares / static_cast<float>(width) + epsilon);
#pragma unroll 4
  for (int k = threadIdx.x; k < width; k += kNormThreads)
    store(y + first + k, from[first + k] * factor * gain[k]);
}

template <typename Out>
__global__ void gate_kernel(const float* x, int64_t count, int64_t width, bool gelu, Out* y) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= count) return;
  const float* row = x + i / width * 2 * width;
  const float gate = row[i % width], up = row[width + i % width];
  const float u = 0.7978845608f * fmaf(0.044715f * gate * gate, gate, gate);
  store(y + i, gate / (1.0f + expf(gelu ? -2.0f * u : -gate)) * up);
}

__global__ void add_kernel(float* x, const float* y, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < count) x[i] += y[i];
}

__global__ void bias_kernel(float* y, int64_t count, int64_t width, int64_t stride, const float* bias) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < count) y[i / width * stride + i % width] += bias[i % width];
}

template <typename Out>
__global__ void copy_kernel(const float* x, int64_t count, int64_t width, int64_t stride, Out* y) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < count) store(y + i, x[i / width * stride + i % width]);
}

__global__ void gather_kernel(const float* x, const int32_t* index, int64_t count, int64_t width, float* y) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < count) y[i] = x[index[i / width] * width + i % width];
}

__global__ void scatter_kernel(const float* x, const int32_t* index, const float* weight, int64_t count,
                               int64_t width, float* y) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < count) y[index[i / width] * width + i % width] += weight[i / width] * x[i];
}

// The order of floats as that of integers, NaN below all.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return isnan(x) ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// A key is the value's order, then the column's, lower columns first; the largest is the answer. The block
// that is last with a row writes it and leaves the row's state as it was.
__global__ void argmax_kernel(const float* x, int width, unsigned long long* keys, int* arrived,
                              int32_t* out) {
  __shared__ unsigned long long warps[kThreads / 32];
  const int row = blockIdx.x, begin = blockIdx.y * kArgmaxColumns, end = min(begin + kArgmaxColumns, width);
  unsigned long long best = 0;
  for (int k = begin + threadIdx.x; k < end; k += kThreads) {
    const unsigned long long key = static_cast<unsigned long long>(ordered(x[int64_t{row} * width + k]))
                                       << 32 |
                                   (0xFFFFFFFFu - static_cast<uint32_t>(k));
    best = key > best ? key : best;
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const unsigned long long other = __shfl_xor_sync(~0u, best, distance);
    best = other > best ? other : best;
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int warp = 1; warp < kThreads / 32; ++warp) best = warps[warp] > best ? warps[warp] : best;
  atomicMax(keys + row, best);
  __threadfence();
  if (atomicAdd(arrived + row, 1) + 1 != static_cast<int>(gridDim.y)) return;
  out[row] = static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(atomicExch(keys + row, 0ull)));
  arrived[row] = 0;
}

__global__ void advance_kernel(const int32_t* tokens, int32_t* lengths, int rows, int32_t* history,
                               int32_t* step) {
  const int now = *step;
  __syncthreads();
  for (int i = threadIdx.x; i < rows; i += blockDim.x) {
    history[now * rows + i] = tokens[i];
    lengths[i] += 1;
  }
  if (threadIdx.x == 0) *step = now + 1;
}

struct EmbeddingParams {
  const uint8_t *hi, *lo;
  const int32_t* block_of;
  const float* scale;
  const void* values;
  bool bf16;
  int64_t columns, residual_block, block_columns, weight_group, groups;
};

// Nibble `i` of bytes that hold the lower index in the low half.
__device__ __forceinline__ int nibble(const uint8_t* bytes, int64_t i) {
  return bytes[i / 2] >> (i % 2 * 4) & 15;
}

__global__ void embed_kernel(EmbeddingParams p, const int32_t* tokens, float scale, float* out) {
  const int64_t row = tokens[blockIdx.x];
  const int64_t begin = blockIdx.y * int64_t{kEmbedColumns};
  const int64_t end = begin + kEmbedColumns < p.columns ? begin + kEmbedColumns : p.columns;
  for (int64_t k = begin + threadIdx.x; k < end; k += blockDim.x) {
    float value;
    if (p.values != nullptr) {
      value = p.bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(p.values)[row * p.columns + k])
                     : static_cast<const float*>(p.values)[row * p.columns + k];
    } else {
      int code = ((nibble(p.hi + row * ((p.columns + 1) / 2), k) ^ 8) - 8) * 16;
      const int block = p.block_of[row / kResidualRows * p.block_columns + k / p.residual_block];
      if (block >= 0)
        code += nibble(
            p.lo + (int64_t{block} * kResidualRows + row % kResidualRows) * ((p.residual_block + 1) / 2),
            k % p.residual_block);
      value = static_cast<float>(code) * (p.scale[row * p.groups + k / p.weight_group] * 0.0625f);
    }
    out[blockIdx.x * p.columns + k] = value * scale;
  }
}

unsigned blocks_of(int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

template <typename Out>
void rms_norm_rows(const float* x, const float* add, float* sum, int64_t rows, int64_t width,
                   const float* gain, float epsilon, Out* y, unsigned long long* bad, cudaStream_t stream) {
  if (rows == 0) return;
  norm_kernel<<<static_cast<unsigned>(rows), kNormThreads, 0, stream>>>(x, add, sum, static_cast<int>(width),
                                                                        gain, epsilon, y, bad);
  cuda_check(cudaGetLastError(), "RMSNorm");
}

template <typename Out>
void gate_rows(const float* x, int64_t rows, int64_t width, bool gelu, Out* y, cudaStream_t stream) {
  if (rows == 0) return;
  gate_kernel<<<blocks_of(rows * width), kThreads, 0, stream>>>(x, rows * width, width, gelu, y);
  cuda_check(cudaGetLastError(), "gate");
}

void add_values(float* x, const float* y, int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  add_kernel<<<blocks_of(count), kThreads, 0, stream>>>(x, y, count);
  cuda_check(cudaGetLastError(), "addition");
}

void add_bias(float* y, int64_t rows, int64_t width, int64_t stride, const float* bias, cudaStream_t stream) {
  if (rows == 0) return;
  bias_kernel<<<blocks_of(rows * width), kThreads, 0, stream>>>(y, rows * width, width, stride, bias);
  cuda_check(cudaGetLastError(), "bias");
}

template <typename Out>
void copy_rows(const float* x, int64_t rows, int64_t width, int64_t stride, Out* y, cudaStream_t stream) {
  if (rows == 0) return;
  copy_kernel<<<blocks_of(rows * width), kThreads, 0, stream>>>(x, rows * width, width, stride, y);
  cuda_check(cudaGetLastError(), "copying rows");
}

void gather_rows(const float* x, const int32_t* index, int64_t rows, int64_t width, float* y,
                 cudaStream_t stream) {
  if (rows == 0) return;
  gather_kernel<<<blocks_of(rows * width), kThreads, 0, stream>>>(x, index, rows * width, width, y);
  cuda_check(cudaGetLastError(), "gathering rows");
}

void scatter_add_rows(const float* x, const int32_t* index, const float* weight, int64_t rows, int64_t width,
                      float* y, cudaStream_t stream) {
  if (rows == 0) return;
  scatter_kernel<<<blocks_of(rows * width), kThreads, 0, stream>>>(x, index, weight, rows * width, width, y);
  cuda_check(cudaGetLastError(), "scattering rows");
}

ArgmaxWorkspace::ArgmaxWorkspace(int64_t rows)
    : keys(static_cast<size_t>(rows)), arrived(static_cast<size_t>(rows)) {}

void argmax_rows(const float* x, int64_t rows, int64_t width, ArgmaxWorkspace& workspace, int32_t* out,
                 cudaStream_t stream) {
  if (rows == 0) return;
  require(static_cast<size_t>(rows) <= workspace.keys.size(), "argmax: {} rows exceed the workspace", rows);
  const dim3 grid(static_cast<unsigned>(rows),
                  static_cast<unsigned>((width + kArgmaxColumns - 1) / kArgmaxColumns));
  argmax_kernel<<<grid, kThreads, 0, stream>>>(x, static_cast<int>(width), workspace.keys.data(),
                                               workspace.arrived.data(), out);
  cuda_check(cudaGetLastError(), "argmax");
}

void advance_sequences(const int32_t* tokens, int32_t* lengths, int64_t rows, int32_t* history, int32_t* step,
                       cudaStream_t stream) {
  advance_kernel<<<1, 256, 0, stream>>>(tokens, lengths, static_cast<int>(rows), history, step);
  cuda_check(cudaGetLastError(), "advancing sequences");
}

DeviceEmbedding::DeviceEmbedding(const void* values, bool bf16, int64_t rows, int64_t columns)
    : rows_(rows), columns_(columns), values_(values), bf16_(bf16) {}

DeviceEmbedding::DeviceEmbedding(const NibblePlanes& planes)
    : rows_(planes.rows),
      columns_(planes.columns),
      residual_block_(planes.residual_block),
      block_columns_(planes.block_columns()),
      weight_group_(planes.weight_group == 0 ? planes.columns : planes.weight_group),
      groups_(planes.groups()),
      hi_(planes.hi.data(), planes.hi.size()),
      lo_(planes.lo.data(), planes.lo.size()),
      scale_(planes.scale.data(), planes.scale.size()) {
  std::vector<int32_t> block_of(static_cast<size_t>(planes.block_rows() * block_columns_), -1);
  for (size_t i = 0; i < planes.residual_index.size(); ++i)
    block_of.at(static_cast<size_t>(planes.residual_index[i])) = static_cast<int32_t>(i);
  block_of_ = DeviceBuffer<int32_t>(block_of.data(), block_of.size());
}

void DeviceEmbedding::look_up(const int32_t* tokens, int64_t count, float scale, float* out,
                              cudaStream_t stream) const {
  if (count == 0) return;
  const EmbeddingParams params{hi_.data(), lo_.data(),      block_of_.data(), scale_.data(), values_, bf16_,
                               columns_,   residual_block_, block_columns_,   weight_group_, groups_};
  const dim3 grid(static_cast<unsigned>(count),
                  static_cast<unsigned>((columns_ + kEmbedColumns - 1) / kEmbedColumns));
  embed_kernel<<<grid, kThreads, 0, stream>>>(params, tokens, scale, out);
  cuda_check(cudaGetLastError(), "embedding");
}

int64_t DeviceEmbedding::row_bytes() const {
  if (values_ != nullptr) return columns_ * (bf16_ ? 2 : 4);
  return columns_ / 2 + static_cast<int64_t>(lo_.size()) / std::max<int64_t>(1, rows_) + groups_ * 4;
}

template void rms_norm_rows(const float*, const float*, float*, int64_t, int64_t, const float*, float, float*,
                            unsigned long long*, cudaStream_t);
template void rms_norm_rows(const float*, const float*, float*, int64_t, int64_t, const float*, float,
                            __nv_bfloat16*, unsigned long long*, cudaStream_t);
template void gate_rows(const float*, int64_t, int64_t, bool, float*, cudaStream_t);
template void gate_rows(const float*, int64_t, int64_t, bool, __nv_bfloat16*, cudaStream_t);
template void copy_rows(const float*, int64_t, int64_t, int64_t, float*, cudaStream_t);
template void copy_rows(const float*, int64_t, int64_t, int64_t, __nv_bfloat16*, cudaStream_t);

}  // namespace quatrain::ops
