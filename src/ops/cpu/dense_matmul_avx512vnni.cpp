#include "ops/cpu/dense_matmul_kernel.h"

namespace quatrain::ops {

const DenseKernel dense_kernel_avx512{avx512::kDensePanel, avx512::kDenseTokens, avx512::dense_run};

}  // namespace quatrain::ops
