#include "ops/cpu/kv_cache_kernel.h"

namespace quatrain::ops {

const KvKernel kv_cache_kernel_avx512{avx512::kv_extremes, avx512::kv_encode, avx512::kv_join};

}  // namespace quatrain::ops
