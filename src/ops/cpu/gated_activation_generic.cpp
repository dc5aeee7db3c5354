#include "ops/cpu/gated_activation_kernel.h"

namespace quatrain::ops {

const GatedActivationKernel gated_activation_kernel_generic = generic::gate_run;

}  // namespace quatrain::ops
