#include "ops/cpu/attention_kernel.h"

namespace quatrain::ops {

const AttentionKernel attention_kernel_generic{generic::attend_pages, generic::attention_merge,
                                               generic::attention_finish};

}  // namespace quatrain::ops
