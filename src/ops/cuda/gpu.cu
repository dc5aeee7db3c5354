#include "ops/cuda/error.h"
#include "ops/cuda/gpu.h"

namespace quatrain::ops {

int gpu_processors() {
  int count = 0, device = 0, driver = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  cudaDriverGetVersion(&driver);
  require(code != cudaErrorInsufficientDriver || driver > 0,
          "CUDA: this machine has no NVIDIA driver; use --device cpu");
  require(
      code != cudaErrorInsufficientDriver,
      "CUDA: the driver supports CUDA {}.{}, this build needs {}.{}; update the driver or use --device cpu",
      driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  require(code == cudaSuccess && count > 0, "CUDA: no usable NVIDIA GPU ({}); use --device cpu",
          cudaGetErrorString(code));
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  require(
      kernels_of(properties.major, properties.minor).has_value(),
      "CUDA: {} has compute capability {}.{}; this build has kernels for 8.0, 8.6 and 8.9 (A100, RTX 30 and "
      "40), 9.0 (H100, H200) and 12.x (RTX 50): use --device cpu",
      properties.name, properties.major, properties.minor);
  return properties.multiProcessorCount;
}

std::optional<GpuKernels> kernels_of(int major, int minor) {
  if (major == 8 && (minor == 0 || minor == 6 || minor == 9)) return GpuKernels::Nibbles;
  if (major == 9 && minor == 0) return GpuKernels::Wgmma;
  if (major == 12) return GpuKernels::Bytes;
  return std::nullopt;
}

namespace {
int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

std::optional<GpuKernels> forced;
}  // namespace

void use_gpu_kernels(std::optional<GpuKernels> kernels) {
  forced = kernels;
}

GpuKernels gpu_kernels() {
  if (forced) return *forced;
  const int major = attribute(cudaDevAttrComputeCapabilityMajor),
            minor = attribute(cudaDevAttrComputeCapabilityMinor);
  const std::optional<GpuKernels> kernels = kernels_of(major, minor);
  require(kernels.has_value(), "CUDA: no kernels for compute capability {}.{}", major, minor);
  return *kernels;
}

int gpu_shared_bytes() {
  return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

bool gpu_overlaps_kernels() {
  return attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
}

}  // namespace quatrain::ops
