// y = x W^T over nibble planes with integer products (docs/format.md):
//   y[t,o] = sum_g s[t,g] * scale[o(,g)]/16 * (P[t,o,g] - z[t,g] * S[o,g]) + bias[o],  P = sum_k q c,  S =
//   sum_k c.
// P and S are exact on every ISA; the FP32 sum over groups runs in index order, so a row's result does not
// depend on how many rows are computed with it.
#pragma once

#include <cstdint>
#include <memory>

#include "base/number_format.h"
#include "base/thread_pool.h"
#include "ops/activation_quantize.h"

namespace quatrain::ops {

/// A weight matrix repacked for the ISA in use. Immutable and thread-safe once built.
class NibbleMatrix {
 public:
  virtual ~NibbleMatrix() = default;
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  /// Bytes that one pass over the matrix reads.
  virtual int64_t bytes() const = 0;

 protected:
  int64_t rows_ = 0, columns_ = 0;
};

/// Repacks for inputs quantised in groups of `activation_group` columns (0: whole token). Group sizes that do
/// not nest (sorted by size each must divide the next, or cover the row) are an Error with the sizes.
std::unique_ptr<NibbleMatrix> pack_nibble_matrix(const NibblePlanes& planes, int64_t activation_group,
                                                 ThreadPool& pool);

/// y [x.tokens, rows], rows `stride` floats apart. x.group must be the group that the matrix was packed for.
void nibble_matmul(const NibbleMatrix& weights, const QuantizedActivations& x, ThreadPool& pool, float* y,
                   int64_t stride);

/// The integer sums P[t, o, g] alone, g over the finest groups, as INT32 [tokens, rows, groups]: what tests
/// compare.
void nibble_matmul_sums(const NibbleMatrix& weights, const QuantizedActivations& x, ThreadPool& pool,
                        int32_t* sums);

}  // namespace quatrain::ops
