#include "ops/cpu/rope_kernel.h"

namespace quatrain::ops {

const RopeKernel rope_kernel_generic = generic::rope_head;

}  // namespace quatrain::ops
