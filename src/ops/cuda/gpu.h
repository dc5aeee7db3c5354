// The GPU in use: found, and fit for the kernels.
#pragma once

namespace quatrain::ops {

/// Multiprocessors of the current GPU. No GPU, a driver too old for this build, or a GPU that the kernels
/// were not built for is an Error that names what was found and what would work.
int gpu_processors();

}  // namespace quatrain::ops
