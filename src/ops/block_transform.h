// Dense transforms of blocks of a row, in place: x_b <- (x_b - c_b) A_b.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/cpu/byte_transform.h"
#include "ops/dense_matmul.h"

namespace quatrain::ops {

/// Immutable and thread-safe once built.
class BlockTransform {
 public:
  /// `values`: matrices [count, order, order], row-major, of which block b of a row takes the one numbered
  /// matrix_of_block[b]. `offset`: c [blocks, order], or empty for zero. Throws where the sizes disagree.
  ///
  /// A matrix whose columns are each at most 127 steps of a power of two stays bytes in memory and takes
  /// exact integer sums of the row in 16 bits (rounding 2^-16 of the block's largest value); others are BF16,
  /// FP16 or FP32, whichever holds them, and take FP32 sums in the order of the block's columns.
  BlockTransform(int64_t order, std::span<const float> values, std::vector<int32_t> matrix_of_block,
                 std::vector<float> offset = {});

  int64_t blocks() const { return static_cast<int64_t>(matrix_of_block_.size()); }
  int64_t width() const { return order_ * blocks(); }
  /// Bytes of matrices that one row reads.
  int64_t bytes() const;

  /// Transforms blocks [begin, end) of rows of width() values, `stride` floats apart, on the calling thread;
  /// x points to the start of a row. A value does not depend on `rows`.
  void apply(float* x, int64_t rows, int64_t stride, int64_t begin, int64_t end) const;

 private:
  // Either bytes (matrix.codes set) or dense, transposed: row j holds column j of A.
  struct Matrix {
    ByteMatrix bytes;
    DenseMatrix dense;
    std::vector<float> step;
  };
  void apply_dense(const DenseMatrix& matrix, const float* offset, int64_t rows, float* x,
                   int64_t stride) const;

  int64_t order_;
  std::vector<Matrix> matrices_;
  std::shared_ptr<uint8_t> codes_;  // of all that are bytes, one stream
  std::vector<int32_t> matrix_of_block_;
  std::vector<float> offset_;
};

}  // namespace quatrain::ops
