#include "ops/cpu/dense_matmul_kernel.h"

namespace quatrain::ops {

const DenseKernel dense_kernel_generic{generic::kDensePanel, generic::kDenseTokens, generic::dense_run};

}  // namespace quatrain::ops
