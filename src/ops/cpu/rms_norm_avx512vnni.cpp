#include "ops/cpu/rms_norm_kernel.h"

namespace quatrain::ops {

const RmsNormKernel rms_norm_kernel_avx512{avx512::rms_square_sum, avx512::rms_scale};

}  // namespace quatrain::ops
