// y = x W^T + b in 16 bits or FP32 through cuBLAS: the products of unquantised models.
#pragma once

#include <cublas_v2.h>
#include <cuda_bf16.h>

#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "ops/cuda/device_buffer.h"

namespace quatrain::ops {

/// A cuBLAS handle on one stream, with a workspace of its own: calls can be captured into graphs.
class CublasHandle {
 public:
  explicit CublasHandle(cudaStream_t stream);
  ~CublasHandle();
  CublasHandle(const CublasHandle&) = delete;
  CublasHandle& operator=(const CublasHandle&) = delete;
  cublasHandle_t get() const { return handle_; }

 private:
  DeviceBuffer<uint8_t> workspace_;
  cublasHandle_t handle_ = nullptr;
};

/// A matrix [rows, columns] in GPU memory, BF16 where every value is exactly that, else FP32.
class DenseDeviceMatrix {
 public:
  DenseDeviceMatrix() = default;
  /// `read` writes rows [begin, end) as FP32, a few at a time, from the threads of `pool`.
  DenseDeviceMatrix(int64_t rows, int64_t columns,
                    const std::function<void(int64_t begin, int64_t end, float* out)>& read,
                    const std::vector<float>& bias, ThreadPool& pool);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  bool bf16() const { return full_.size() == 0; }
  const void* data() const {
    return bf16() ? static_cast<const void*>(half_.data()) : static_cast<const void*>(full_.data());
  }
  int64_t bytes() const { return static_cast<int64_t>(half_.bytes() + full_.bytes()); }

  /// y [tokens, rows], rows `stride` floats apart, from x [tokens, columns] side by side, BF16 where bf16(),
  /// else FP32; sums in FP32. With `invariant`, cuBLAS always sees kInvariantTokens tokens, so that it always
  /// adds in the same order: x and y must have room for so many, and what lies in y past `tokens` is lost.
  void multiply(const CublasHandle& cublas, const void* x, int64_t tokens, float* y, int64_t stride,
                cudaStream_t stream, bool invariant = false) const;
  static constexpr int64_t kInvariantTokens = 64;

 private:
  int64_t rows_ = 0, columns_ = 0;
  DeviceBuffer<__nv_bfloat16> half_;
  DeviceBuffer<float> full_;
  DeviceBuffer<float> bias_;
};

}  // namespace quatrain::ops
