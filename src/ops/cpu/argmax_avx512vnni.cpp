#include "ops/cpu/argmax_kernel.h"

namespace quatrain::ops {

const ArgmaxKernel argmax_kernel_avx512 = avx512::largest;

}  // namespace quatrain::ops
