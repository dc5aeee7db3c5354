#include "ops/cpu/rms_norm_kernel.h"

namespace quatrain::ops {

const RmsNormKernel rms_norm_kernel_avx2{avx2::rms_square_sum, avx2::rms_scale};

}  // namespace quatrain::ops
