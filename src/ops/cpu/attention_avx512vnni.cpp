#include "ops/cpu/attention_kernel.h"

namespace quatrain::ops {

const AttentionKernel attention_kernel_avx512{avx512::attend_pages, avx512::attention_merge,
                                              avx512::attention_finish};

}  // namespace quatrain::ops
