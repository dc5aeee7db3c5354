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
  require(properties.major == 9 && properties.minor == 0,
          "CUDA: {} has compute capability {}.{}; the kernels of this build need 9.0 (H100, H200): use "
          "--device cpu",
          properties.name, properties.major, properties.minor);
  return properties.multiProcessorCount;
}

}  // namespace quatrain::ops
