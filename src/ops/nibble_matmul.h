// y = x W^T over nibble planes with integer products (docs/format.md):
//   y[t,o] = sum_g s[t,g] * scale[o(,g)]/16 * (P[t,o,g] - z[t,g] * S[o,g]) + bias[o],  P = sum_k q c,  S =
//   sum_k c.
// P and S are exact integers on every ISA, over groups that are the finest of weight and activation group.
// The FP32 part is the same on every ISA too, bit for bit, with groups in index order:
//   t = RN(P - z S);  acc = fma(s, t, acc), or fma(s, RN(t scale), acc) with group scales;
//   y = fma(acc, scale / 16, bias), or fma(acc, 1 / 16, bias) with group scales;
// where a token has one scale s and zero z for several groups of more than 256 columns in all:
//   acc = RN(-z RN(sum_g scale S));  acc = fma(scale, RN(P), acc);  y = fma(s / 16, acc, bias);
// so a row's result does not depend on the rows that are computed with it, on threads or on the machine.
#pragma once

#include <cstdint>
#include <memory>

#include "base/number_format.h"
#include "base/thread_pool.h"
#include "ops/activation_quantize.h"

namespace quatrain::ops {

/// A weight matrix repacked for the CPU kernels, one layout for every ISA. Immutable and thread-safe once
/// built.
class NibbleMatrix {
 public:
  virtual ~NibbleMatrix() = default;
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  /// Bytes that one pass over the matrix reads.
  virtual int64_t bytes() const = 0;
  /// Row `row` as FP32, the values of NibblePlanes::dequantize_row: the look-up of an embedding that shares
  /// the head's planes.
  virtual void row(int64_t row, float* out) const = 0;

 protected:
  int64_t rows_ = 0, columns_ = 0;
};

/// Repacks for inputs quantised in groups of `activation_group` columns (0: whole token). An Error where
/// weight group, activation group and residual block do not nest (sorted by size each must divide the next,
/// or cover the row), where a group is so wide that INT32 sums may overflow (65,793 columns), where a group
/// scale is not an FP16 value, or where the planes' arrays do not fit their shape.
std::unique_ptr<NibbleMatrix> pack_nibble_matrix(const NibblePlanes& planes, int64_t activation_group,
                                                 ThreadPool& pool);

/// y [x.tokens, rows], rows `stride` floats apart. x.group must be the group that the matrix was packed for;
/// zeros of groups wider than 256 columns lie in [0, 255], as quantize_group makes them.
void nibble_matmul(const NibbleMatrix& weights, const QuantizedActivations& x, ThreadPool& pool, float* y,
                   int64_t stride);

/// The integer sums P[t, o, g] alone, g over the finest of weight and activation groups, as INT32
/// [tokens, rows, groups]: what tests compare.
void nibble_matmul_sums(const NibbleMatrix& weights, const QuantizedActivations& x, ThreadPool& pool,
                        int32_t* sums);

}  // namespace quatrain::ops
