#include "ops/cpu/rope_kernel.h"

namespace quatrain::ops {

const RopeKernel rope_kernel_avx512 = avx512::rope_head;

}  // namespace quatrain::ops
