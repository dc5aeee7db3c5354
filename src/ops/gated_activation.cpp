#include "ops/gated_activation.h"

#include "ops/cpu/gated_activation.h"
#include "ops/cpu/select.h"

namespace quatrain::ops {

void gated_activation(GateFunction function, const float* gate, const float* up, int64_t count, float* y) {
  select_kernel(active_isa(), gated_activation_kernel_generic, gated_activation_kernel_avx2,
                gated_activation_kernel_avx512)(function, gate, up, count, y);
}

}  // namespace quatrain::ops
