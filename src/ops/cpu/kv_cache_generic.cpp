#include "ops/cpu/kv_cache_kernel.h"

namespace quatrain::ops {

const KvKernel kv_cache_kernel_generic{generic::kv_extremes, generic::kv_encode, generic::kv_join};

}  // namespace quatrain::ops
