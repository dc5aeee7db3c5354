// Launches whose kernels begin with ptx::wait_for_previous_kernel(): their blocks may be set up while the
// kernel before them in the stream still runs (programmatic dependent launch).
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/error.h"
#include "ops/cuda/gpu.h"

namespace quatrain::ops {

template <typename... Parameters, typename... Arguments>
void launch_dependent(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared_bytes,
                      cudaStream_t stream, const char* what, const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = gpu_overlaps_kernels() ? 1 : 0;
  cuda_check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), what);
}

}  // namespace quatrain::ops
