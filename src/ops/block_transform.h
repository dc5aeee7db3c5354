// Dense transforms of blocks of a row, in place: x_b <- (x_b - c_b) A_b.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/dense_matmul.h"

namespace quatrain::ops {

/// Immutable and thread-safe once built.
class BlockTransform {
 public:
  /// `values`: matrices [count, order, order], row-major, of which block b of a row takes the one numbered
  /// matrix_of_block[b]; matrices that are BF16 or FP16 throughout stay so in memory. `offset`: c
  /// [blocks, order], or empty for zero. Throws where the sizes disagree.
  BlockTransform(int64_t order, std::span<const float> values, std::vector<int32_t> matrix_of_block,
                 std::vector<float> offset = {});

  int64_t blocks() const { return static_cast<int64_t>(matrix_of_block_.size()); }
  int64_t width() const { return order_ * blocks(); }
  /// Bytes of matrices that one row reads.
  int64_t bytes() const;

  /// Transforms blocks [begin, end) of rows of width() values, `stride` floats apart, on the calling thread;
  /// x points to the start of a row. Every value is one FP32 sum in the order of the block's columns: it does
  /// not depend on `rows`.
  void apply(float* x, int64_t rows, int64_t stride, int64_t begin, int64_t end) const;

 private:
  int64_t order_;
  std::vector<DenseMatrix> matrices_;  // transposed: row j holds column j of A
  std::vector<int32_t> matrix_of_block_;
  std::vector<float> offset_;
};

}  // namespace quatrain::ops
