#include "ops/cpu/attention_kernel.h"

namespace quatrain::ops {

const AttentionKernel attention_kernel_avx2{avx2::attend_pages, avx2::attention_merge,
                                            avx2::attention_finish};

}  // namespace quatrain::ops
