// An array in GPU memory, freed with its owner.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "ops/cuda/error.h"

namespace quatrain::ops {

/// Bytes in all DeviceBuffers of this process.
inline std::atomic<size_t> device_buffer_bytes = 0;

template <typename T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Room for `size` elements, all bytes zero. Too little memory is an Error with the bytes asked for.
  explicit DeviceBuffer(size_t size) : size_(size) {
    if (size == 0) return;
    const cudaError_t code = cudaMalloc(&data_, size * sizeof(T));
    require(code == cudaSuccess, "CUDA: no room for {} MiB on the GPU: {}", (size * sizeof(T)) >> 20,
            cudaGetErrorString(code));
    device_buffer_bytes += bytes();
    cuda_check(cudaMemset(data_, 0, size * sizeof(T)), "cudaMemset");
  }
  DeviceBuffer(const T* host, size_t size) : DeviceBuffer(size) { upload(host, size); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ == nullptr) return;
    cudaFree(data_);
    device_buffer_bytes -= bytes();
  }

  void upload(const T* host, size_t size) {
    cuda_check(cudaMemcpy(data_, host, size * sizeof(T), cudaMemcpyHostToDevice), "copy to the GPU");
  }
  void download(T* host, size_t size) const {
    cuda_check(cudaMemcpy(host, data_, size * sizeof(T), cudaMemcpyDeviceToHost), "copy from the GPU");
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace quatrain::ops
