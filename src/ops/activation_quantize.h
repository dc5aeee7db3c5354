// Rows of FP32 to unsigned codes with a scale and a zero per group (docs/format.md): the input of
// nibble_matmul.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/buffer.h"
#include "base/number_format.h"
#include "base/thread_pool.h"

namespace quatrain::ops {

/// x[t, k] = scale[t, k / group] * (code[t, k] - zero[t, k / group]).
struct QuantizedActivations {
  int64_t tokens = 0;
  int64_t width = 0;
  int64_t group = 0;  // columns of a group; the last may be narrower; width for a whole token
  int64_t groups = 0;
  int64_t stride = 0;  // bytes of a row of codes: width rounded up to 64, the tail zero
  int bits = 8;
  int64_t first_token = 0;       // number of row 0 in messages
  AlignedBuffer<uint8_t> codes;  // [tokens, stride]
  AlignedBuffer<float> scale;    // [tokens, groups]
  AlignedBuffer<int16_t> zero;   // [tokens, groups]
};

/// Quantises x [tokens, width], rows `stride` floats apart, as base/number_format.h defines. policy.bits is 4
/// or 8. NaN or infinity is an Error that names `site` (layer and linear), token and channel.
void quantize_activations(const float* x, int64_t tokens, int64_t stride, int64_t width,
                          const ActivationPolicy& policy, std::string_view site, ThreadPool& pool,
                          QuantizedActivations& out);

/// Shapes `out` for `tokens` rows of `width` columns without filling it, for operators that end in
/// quantize_activation_row.
void shape_activations(int64_t tokens, int64_t width, const ActivationPolicy& policy,
                       QuantizedActivations& out);

/// Quantises columns [first, last) of x [out.width] into row `token` of a shaped `out`: the step of
/// quantize_activations. `first` begins a group and so does `last`, unless it is the width. Parts may be
/// filled from several threads.
void quantize_activation_columns(const float* x, int64_t token, int64_t first, int64_t last,
                                 const ActivationPolicy& policy, std::string_view site,
                                 QuantizedActivations& out);

}  // namespace quatrain::ops
