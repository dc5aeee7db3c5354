#include "ops/cpu/argmax_kernel.h"

namespace quatrain::ops {

const ArgmaxKernel argmax_kernel_avx2 = avx2::largest;

}  // namespace quatrain::ops
