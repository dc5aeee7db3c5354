#include "ops/cpu/attention_codes.h"
#include "ops/cpu/attention_kernel.h"

namespace quatrain::ops {
namespace {

void attend(const AttentionBlock& block, int64_t first, int64_t last, const AttentionState& state) {
  if (attends_codes_avx512vnni(*block.layout))
    attend_codes_avx512vnni(block, first, last, state);
  else
    avx512::attend_pages(block, first, last, state);
}

}  // namespace

const AttentionKernel attention_kernel_avx512{attend, avx512::attention_merge, avx512::attention_finish};

}  // namespace quatrain::ops
