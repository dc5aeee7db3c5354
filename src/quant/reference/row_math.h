// Loops over rows of FP32 matrices where the reference forward and calibration would otherwise spend their
// time in chains of torch operations that each walk through memory. Plain pointers, one thread.
#pragma once

#include <cstdint>

namespace quatrain {

/// out = x / rms(x) * gain, row by row: x, out [rows, width], gain [width].
void rms_norm_rows(const float* x, const float* gain, int64_t rows, int64_t width, float epsilon, float* out);

/// RoPE of x [tokens, heads, dim]: columns (i, i + half) of every head turn by the angle whose cosine and
/// sine stand in row t of [tokens, half]; columns past 2 half are copied.
void rotate_rows(const float* x, const float* cosine, const float* sine, int64_t tokens, int64_t heads,
                 int64_t dim, int64_t half, float* out);

/// Causal attention weights, in place: row r of scores [rows, keys] belongs to the query at position
/// `begin` + r / shared and sees the keys from position `first` on that are neither behind it nor, with a
/// window > 0, `window` or more before it; the others become 0.
void causal_softmax_rows(float* scores, int64_t rows, int64_t keys, int64_t begin, int64_t first,
                         int64_t shared, int64_t window);

/// out = silu(gate) * up, `count` values.
void silu_product(const float* gate, const float* up, int64_t count, float* out);

/// How one group of values is quantised; see fake_quantize.h.
struct GroupRule {
  int bits = 4;
  bool symmetric = false;
  bool force_zero = false;  // asymmetric: zero lies in the range
  bool half_scale = false;  // the scale is rounded to FP16 before the codes are formed
};

/// s (q - z) of x [rows, width], groups of `group` along a row, the last may be narrower. Returns the index
/// of the first value that is not finite, or -1. A scale beyond FP16 gives values that are not finite.
int64_t quantize_rows(const float* x, int64_t rows, int64_t width, int64_t group, const GroupRule& rule,
                      float* out);

/// The index of the first value that is not finite, or -1.
int64_t first_not_finite(const float* x, int64_t count);

}  // namespace quatrain
