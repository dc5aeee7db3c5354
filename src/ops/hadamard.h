// Fast randomised Hadamard transforms of rows, in place: x <- x D H / sqrt(order) in every block of `order`
// columns (base/hadamard_matrix.h has H and D). Cost a value: log2 of the power of two, plus the base order.
#pragma once

#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "base/hadamard_matrix.h"
#include "base/thread_pool.h"

namespace quatrain::ops {

/// Immutable and thread-safe once built.
class HadamardTransform {
 public:
  /// Blocks of `order` over `width` columns (order = width: one transform of the row). Throws where width is
  /// not a multiple of order or no matrix of that order is known.
  HadamardTransform(int64_t width, int64_t order, uint64_t seed, bool offset);

  int64_t width() const { return width_; }
  int64_t order() const { return order_; }

  /// Transforms x [width]. The same bits on every instruction set.
  void apply_row(float* x) const;
  /// Transforms x [rows, width], rows `stride` floats apart.
  void apply(float* x, int64_t rows, int64_t stride, ThreadPool& pool) const;

 private:
  int64_t width_;
  int64_t order_;
  HadamardOrder factors_;
  AlignedBuffer<float> signs_;  // D / sqrt(order)
  AlignedBuffer<float> base_;   // [base, base]
};

}  // namespace quatrain::ops
