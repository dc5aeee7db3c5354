#include "ops/cpu/rope_kernel.h"

namespace quatrain::ops {

const RopeKernel rope_kernel_avx2 = avx2::rope_head;

}  // namespace quatrain::ops
