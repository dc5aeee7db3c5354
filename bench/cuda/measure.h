// Timing on the GPU: medians of graph replays, random operands, ceilings of the same run.
#pragma once

#include <cublas_v2.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "ops/cuda/device_buffer.h"

namespace quatrain::bench {

inline __host__ __device__ uint32_t hash(uint64_t i, uint32_t seed) {
  uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93ull;
  x ^= x >> 29;
  return static_cast<uint32_t>(x >> 16);
}

/// Sums of four uniform values: close enough to normal, standard deviation `scale`.
__global__ inline void fill_normal(__nv_bfloat16* out, int64_t size, float scale, uint32_t seed) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < size;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const uint32_t h = hash(i, seed);
    const float sum = static_cast<float>((h & 255) + (h >> 8 & 255) + (h >> 16 & 255) + (h >> 24)) - 510.0f;
    out[i] = __float2bfloat16(sum * (scale / 147.8f));
  }
}

/// Values in [low, low + span) as T.
template <typename T>
__global__ void fill_integers(T* out, int64_t size, int low, int span, uint32_t seed) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < size;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    out[i] = static_cast<T>(low + static_cast<int>(hash(i, seed) % static_cast<unsigned>(span)));
}

__global__ inline void fill_scales(float* out, int64_t size, uint32_t seed) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < size;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    out[i] = 0.01f + 1e-6f * static_cast<float>(hash(i, seed) & 1023);
}

__global__ inline void copy_vectors(const uint4* from, uint4* to, int64_t size) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < size;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    to[i] = from[i];
}

/// Microseconds of one call: the median over `rounds` replays of a graph of `calls` calls; call(i) enqueues
/// the i-th on the stream and should rotate over operands, so that L2 stays cold.
inline double microseconds(cudaStream_t stream, int calls, const std::function<void(int)>& call,
                           int rounds = 7) {
  call(0);  // modules and handles load outside the graph
  ops::cuda_check(cudaStreamSynchronize(stream), "warm-up");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  ops::cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < calls; ++i) call(i);
  ops::cuda_check(cudaStreamEndCapture(stream, &graph), "capture");
  ops::cuda_check(cudaGraphInstantiate(&exec, graph, 0), "graph");
  cudaEvent_t from, to;
  cudaEventCreate(&from);
  cudaEventCreate(&to);
  std::vector<float> times;
  for (int round = -1; round < rounds; ++round) {
    cudaEventRecord(from, stream);
    cudaGraphLaunch(exec, stream);
    cudaEventRecord(to, stream);
    ops::cuda_check(cudaEventSynchronize(to), "timed run");
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, from, to);
    if (round >= 0) times.push_back(milliseconds);
  }
  cudaEventDestroy(from);
  cudaEventDestroy(to);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2] * 1e3 / calls;
}

/// Bytes a second, read plus written, of copying 2 GiB: the faster of cudaMemcpy and a plain kernel.
inline double copy_bandwidth(cudaStream_t stream) {
  const size_t size = size_t{2} << 30;
  ops::DeviceBuffer<uint8_t> a(size), b(size);
  fill_integers<<<1024, 256, 0, stream>>>(a.data(), static_cast<int64_t>(size), 0, 256, 1);
  const double kernel = microseconds(stream, 4, [&](int) {
    copy_vectors<<<132 * 16, 512, 0, stream>>>(reinterpret_cast<uint4*>(a.data()),
                                               reinterpret_cast<uint4*>(b.data()),
                                               static_cast<int64_t>(size / 16));
  });
  const double memcpy = microseconds(
      stream, 4, [&](int) { cudaMemcpyAsync(b.data(), a.data(), size, cudaMemcpyDeviceToDevice, stream); });
  return 2.0 * static_cast<double>(size) / (std::min(kernel, memcpy) * 1e-6);
}

inline void print_machine() {
  cudaDeviceProp properties;
  int driver = 0, runtime = 0;
  ops::cuda_check(cudaGetDeviceProperties(&properties, 0), "device properties");
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  std::printf("%s, %d SMs, CUDA driver API %d, runtime %d\n", properties.name, properties.multiProcessorCount,
              driver, runtime);
}

}  // namespace quatrain::bench
