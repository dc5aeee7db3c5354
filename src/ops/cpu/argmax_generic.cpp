#include "ops/cpu/argmax_kernel.h"

namespace quatrain::ops {

const ArgmaxKernel argmax_kernel_generic = generic::largest;

}  // namespace quatrain::ops
