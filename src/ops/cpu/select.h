// One of the three compiled versions of an FP32 kernel (cpu/vec.h), by instruction set.
#pragma once

#include "ops/cpu/isa.h"

namespace quatrain::ops {

template <typename Kernel>
const Kernel& select_kernel(Isa isa, const Kernel& generic, const Kernel& avx2, const Kernel& avx512) {
  switch (isa) {
    case Isa::Generic:
      return generic;
    case Isa::Avx2:
    case Isa::AvxVnni:
      return avx2;
    case Isa::Avx512Vnni:
      return avx512;
  }
  return generic;
}

}  // namespace quatrain::ops
