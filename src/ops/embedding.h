// Rows of an embedding: one token's vector from a 16-bit or FP32 matrix, or from nibble planes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/number_format.h"
#include "ops/dense_matmul.h"
#include "ops/nibble_matmul.h"

namespace quatrain::ops {

class Embedding {
 public:
  /// Shared with a tied head.
  explicit Embedding(std::shared_ptr<const DenseMatrix> matrix);
  explicit Embedding(std::shared_ptr<const NibbleMatrix> matrix);
  explicit Embedding(NibblePlanes planes);

  int64_t rows() const;
  int64_t columns() const;
  /// Bytes that one look-up reads.
  int64_t row_bytes() const;
  /// The vector of `token` in [0, rows()), times `scale`.
  void look_up(int64_t token, float scale, float* out) const;

 private:
  void unpack(int64_t row, float* out) const;

  std::shared_ptr<const DenseMatrix> matrix_;
  std::shared_ptr<const NibbleMatrix> nibbles_;
  NibblePlanes planes_;
  std::vector<int64_t> first_block_;  // of each 16 rows: where its residual blocks begin in residual_index
};

}  // namespace quatrain::ops
