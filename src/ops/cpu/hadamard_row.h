// The kernels behind HadamardTransform, one a instruction set. Every output is the same tree of FP32
// additions on each, so results are equal bit for bit: butterflies of distance 1, 2, 4, ...; then the base
// matrix, summed in row order.
#pragma once

#include <cstdint>

namespace quatrain::ops {

struct HadamardRowArguments {
  int64_t blocks;
  int64_t base;         // order of the base matrix
  int64_t inner;        // 2^power
  const float* signs;   // [blocks * base * inner], the factor 1 / sqrt(order) included
  const float* matrix;  // [base, base]
  float* scratch;       // [base * inner], unused where base = 1
};

void hadamard_row_generic(const HadamardRowArguments& transform, float* x);
void hadamard_row_avx2(const HadamardRowArguments& transform, float* x);
void hadamard_row_avx512vnni(const HadamardRowArguments& transform, float* x);

}  // namespace quatrain::ops
