// Matrix products at the width of this machine's registers.
#pragma once

namespace quatrain {

/// OpenBLAS chooses its kernels by the processor's model when it is loaded, and gives models that it does not
/// know 256-bit ones, at half the speed where AVX-512 exists. The choice can only be overruled from outside,
/// so where it is too narrow the program starts itself again with OPENBLAS_CORETYPE set, once and before any
/// work. Does nothing with another BLAS or when the variable is set already.
void restart_with_wide_products();

}  // namespace quatrain
