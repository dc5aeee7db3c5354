// How the zipper GEMM's kernels are launched.
#pragma once

#include <cuda.h>

#include "ops/cuda/device_activations.h"
#include "ops/cuda/error.h"
#include "ops/cuda/zipper_params.h"
#include "ops/cuda/zipper_wide_activations.h"

namespace quatrain::ops::zipper {

/// The tensor map of a matrix of `rows` rows of `row_bytes` bytes, whole multiples of 128: boxes of 128 bytes
/// of `box` rows, swizzled for wgmma.
CUtensorMap byte_map(const void* data, int64_t row_bytes, int64_t rows, int box);

/// The wide kernel with tiles of 128 or 256 tokens, after a kernel that prepares x in `scratch`.
void launch_wide(int tile_tokens, const Params& params, const DeviceActivations& x, WideActivations& scratch,
                 cudaStream_t stream, bool overlap);

/// `clusters` clusters of `cluster` CTAs.
template <typename Kernel, typename... Args>
void cluster_launch(Kernel kernel, int clusters, int cluster, int threads, int shared_bytes,
                    cudaStream_t stream, bool overlap, const Args&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * cluster));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = overlap ? 1 : 0;
  config.attrs = attributes;
  config.numAttrs = 2;
  cuda_check(cudaLaunchKernelEx(&config, kernel, args...), "zipper GEMM");
}

}  // namespace quatrain::ops::zipper
