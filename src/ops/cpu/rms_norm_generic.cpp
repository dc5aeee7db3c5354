#include "ops/cpu/rms_norm_kernel.h"

namespace quatrain::ops {

const RmsNormKernel rms_norm_kernel_generic{generic::rms_square_sum, generic::rms_scale};

}  // namespace quatrain::ops
