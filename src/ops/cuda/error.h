// CUDA's return codes as quatrain::Error.
#pragma once

#include <cuda_runtime.h>

#include "base/error.h"

namespace quatrain::ops {

/// Throws with the operation's name and CUDA's text unless the code is success.
inline void cuda_check(cudaError_t code, const char* operation) {
  require(code == cudaSuccess, "CUDA: {} failed: {} ({})", operation, cudaGetErrorString(code),
          cudaGetErrorName(code));
}

}  // namespace quatrain::ops
