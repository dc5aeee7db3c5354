#include "ops/cpu/kv_cache_kernel.h"

namespace quatrain::ops {

const KvKernel kv_cache_kernel_avx2{avx2::kv_extremes, avx2::kv_encode, avx2::kv_join};

}  // namespace quatrain::ops
