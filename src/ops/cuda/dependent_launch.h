// Launches whose kernels begin with ptx::wait_for_previous_kernel(): their blocks may be set up while the
// kernel before them in the stream still runs (programmatic dependent launch).
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/error.h"
#include "ops/cuda/gpu.h"

namespace quatrain::ops {

/// In clusters of `cluster` blocks, which only GPUs that overlap kernels have.
template <typename... Parameters, typename... Arguments>
void launch_clusters(void (*kernel)(Parameters...), dim3 grid, unsigned cluster, unsigned threads,
                     size_t shared_bytes, cudaStream_t stream, const char* what,
                     const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = !gpu_overlaps_kernels() ? 0 : cluster == 1 ? 1 : 2;
  cuda_check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), what);
}

template <typename... Parameters, typename... Arguments>
void launch_dependent(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared_bytes,
                      cudaStream_t stream, const char* what, const Arguments&... arguments) {
  launch_clusters(kernel, grid, 1, threads, shared_bytes, stream, what, arguments...);
}

}  // namespace quatrain::ops
