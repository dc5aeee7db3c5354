#include "ops/cpu/dense_matmul_kernel.h"

namespace quatrain::ops {

const DenseKernel dense_kernel_avx2{avx2::kDensePanel, avx2::kDenseTokens, avx2::dense_run};

}  // namespace quatrain::ops
