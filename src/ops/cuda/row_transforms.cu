#include <algorithm>
#include <cmath>

#include "base/hadamard_matrix.h"
#include "ops/cuda/gpu.h"
#include "ops/cuda/row_transforms.h"

namespace quatrain::ops {
namespace {

constexpr int kLargestOrder = 32768;
constexpr int kBlockRows = 8;  // rows that one reading of a matrix serves

// One CTA a (row, block). Butterflies of distance 1, 2, ..., then the base matrix, summed in row order: the
// tree of cpu/hadamard_row.h.
__global__ void hadamard_kernel(float* x, int64_t stride, int order, int base, int inner, int blocks,
                                int signs_blocks, const float* signs, const float* matrix) {
  extern __shared__ float v[];
  float* at = x + static_cast<int64_t>(blockIdx.x / blocks) * stride + blockIdx.x % blocks * int64_t{order};
  const float* sign = signs + static_cast<int64_t>(blockIdx.x % blocks % signs_blocks) * order;
  for (int k = threadIdx.x; k < order; k += blockDim.x) v[k] = at[k] * sign[k];
  for (int distance = 1; distance < inner; distance *= 2) {
    __syncthreads();
    for (int i = threadIdx.x; i < order / 2; i += blockDim.x) {
      const int low = i / distance * 2 * distance + i % distance;
      const float a = v[low], b = v[low + distance];
      v[low] = a + b;
      v[low + distance] = a - b;
    }
  }
  __syncthreads();
  for (int k = threadIdx.x; k < order; k += blockDim.x) {
    float sum = v[k];
    if (base > 1) {
      sum = 0;
      for (int i = 0; i < base; ++i) sum += matrix[i * base + k / inner] * v[i * inner + k % inner];
    }
    at[k] = sum;
  }
}

// One CTA a (block, kBlockRows rows); a thread has one column of the result.
__global__ void block_kernel(float* x, int rows, int64_t stride, int order, const float* values,
                             const int32_t* matrix_of_block, const float* offset) {
  extern __shared__ float in[];  // [order][kBlockRows]
  const int first = blockIdx.y * kBlockRows, column = threadIdx.x;
  float* at = x + first * stride + static_cast<int64_t>(blockIdx.x) * order;
  const float shift = offset == nullptr ? 0.0f : offset[static_cast<int64_t>(blockIdx.x) * order + column];
  const int count = min(kBlockRows, rows - first);
  for (int r = 0; r < kBlockRows; ++r)
    in[column * kBlockRows + r] = r < count ? at[r * stride + column] - shift : 0.0f;
  __syncthreads();
  const float* matrix = values + static_cast<int64_t>(matrix_of_block[blockIdx.x]) * order * order + column;
  float sum[kBlockRows] = {};
#pragma unroll 8
  for (int k = 0; k < order; ++k) {
    const float a = __ldg(matrix + static_cast<int64_t>(k) * order);
#pragma unroll
    for (int r = 0; r < kBlockRows; ++r) sum[r] = fmaf(in[k * kBlockRows + r], a, sum[r]);
  }
  for (int r = 0; r < count; ++r) at[r * stride + column] = sum[r];
}

}  // namespace

DeviceHadamard::DeviceHadamard(int64_t width, int64_t order, uint64_t seed, bool offset, int64_t repeats)
    : width_(width), order_(order), repeats_(repeats) {
  require(order > 0 && width % order == 0, "GPU Hadamard transform: order {} does not divide {} columns",
          order, width);
  const int largest = std::min(kLargestOrder, gpu_shared_bytes() / 4);
  require(order <= largest, "GPU Hadamard transform: order {}; this GPU takes up to {}: use --device cpu",
          order, largest);
  const HadamardOrder factors = factor_hadamard_order(order);
  base_ = factors.base;
  inner_ = int64_t{1} << factors.power;
  host_signs_ = hadamard_signs(width, order, seed, offset);
  const float norm = 1.0f / std::sqrt(static_cast<float>(order));
  std::vector<float> scaled = host_signs_;
  for (float& sign : scaled) sign *= norm;
  signs_ = DeviceBuffer<float>(scaled.data(), scaled.size());
  const std::vector<int8_t> base = hadamard_base_matrix(base_);
  const std::vector<float> matrix(base.begin(), base.end());
  matrix_ = DeviceBuffer<float>(matrix.data(), matrix.size());
}

void DeviceHadamard::apply(float* x, int64_t rows, int64_t stride, cudaStream_t stream) const {
  if (rows == 0) return;
  const int64_t blocks = width_ / order_ * repeats_;
  const size_t bytes = static_cast<size_t>(order_) * sizeof(float);
  if (bytes > 48 * 1024) {
    static const cudaError_t prepared =
        cudaFuncSetAttribute(hadamard_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             std::min(kLargestOrder * 4, gpu_shared_bytes()));
    cuda_check(prepared, "Hadamard transform: shared memory");
  }
  const auto threads = static_cast<unsigned>(std::clamp<int64_t>((order_ + 63) / 64 * 32, 32, 512));
  hadamard_kernel<<<static_cast<unsigned>(rows * blocks), threads, bytes, stream>>>(
      x, stride, static_cast<int>(order_), static_cast<int>(base_), static_cast<int>(inner_),
      static_cast<int>(blocks), static_cast<int>(width_ / order_), signs_.data(), matrix_.data());
  cuda_check(cudaGetLastError(), "Hadamard transform");
}

DeviceBlockTransform::DeviceBlockTransform(int64_t order, std::span<const float> values,
                                           std::span<const int32_t> matrix_of_block,
                                           std::span<const float> offset)
    : order_(order),
      blocks_(static_cast<int64_t>(matrix_of_block.size())),
      values_(values.data(), values.size()),
      matrix_of_block_(matrix_of_block.data(), matrix_of_block.size()) {
  require(order > 0 && order <= 1024, "GPU block transform: order {}; it takes up to 1,024", order);
  if (!offset.empty()) offset_ = DeviceBuffer<float>(offset.data(), offset.size());
}

void DeviceBlockTransform::apply(float* x, int64_t rows, int64_t stride, cudaStream_t stream) const {
  if (rows == 0) return;
  const dim3 grid(static_cast<unsigned>(blocks_),
                  static_cast<unsigned>((rows + kBlockRows - 1) / kBlockRows));
  block_kernel<<<grid, static_cast<unsigned>(order_), static_cast<size_t>(order_ * kBlockRows) * 4, stream>>>(
      x, static_cast<int>(rows), stride, static_cast<int>(order_), values_.data(), matrix_of_block_.data(),
      offset_.data());
  cuda_check(cudaGetLastError(), "block transform");
}

}  // namespace quatrain::ops
