// The GPU in use: found, and fit for the kernels.
#pragma once

#include <optional>

namespace quatrain::ops {

/// How a GPU multiplies: wgmma on 8-bit operands; mma.sync on 4-bit ones; mma.sync on 8-bit ones, where 4-bit
/// products are emulated.
enum class GpuKernels { Wgmma, Nibbles, Bytes };

/// The kernels of this build for a compute capability; none: it is not served.
std::optional<GpuKernels> kernels_of(int major, int minor);

/// Of the current GPU, which must be served (gpu_processors() says so by name).
GpuKernels gpu_kernels();

/// Makes gpu_kernels() answer this, for tests of kernels that the GPU at hand can run but would not take;
/// none: the GPU decides again.
void use_gpu_kernels(std::optional<GpuKernels> kernels);

/// Multiprocessors of the current GPU. No GPU, a driver too old for this build, or a GPU that the kernels
/// were not built for is an Error that names what was found and what would work.
int gpu_processors();

/// Whether the current GPU can start a kernel while the one before it still runs (compute capability 9.0 on).
bool gpu_overlaps_kernels();

/// Bytes of shared memory that a block may have on the current GPU.
int gpu_shared_bytes();

}  // namespace quatrain::ops
