// The row kernels behind quantize_activations, one a instruction set; all give the same bits.
#pragma once

#include <cstdint>

namespace quatrain::ops {

/// One row of `width` values in groups of `group` columns. Writes width codes and a scale and a zero a group.
/// Returns false, with the outputs undefined, where a value is NaN or infinite.
struct QuantizeRowArguments {
  const float* x;
  int64_t width;
  int64_t group;
  int bits;
  bool symmetric;
  uint8_t* codes;
  float* scale;
  int16_t* zero;
};

bool quantize_row_generic(const QuantizeRowArguments& row);
bool quantize_row_avx2(const QuantizeRowArguments& row);
bool quantize_row_avx512vnni(const QuantizeRowArguments& row);

}  // namespace quatrain::ops
