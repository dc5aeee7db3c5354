// y = x W^T + b with FP32 activations and weights in FP32, BF16 or FP16: the products of 16-bit models.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "ops/cpu/isa.h"

namespace quatrain::ops {

enum class WeightType { F32, BF16, F16 };

/// Writes rows [begin, end) of a weight matrix as FP32. Called from several threads.
using RowReader = std::function<void(int64_t begin, int64_t end, float* out)>;

/// A weight matrix [rows, columns] in its narrowest exact type, in panels for the ISA in use: a panel holds
/// `panel` rows column by column, so one pass over the matrix is one sequential stream. Immutable once built.
class DenseMatrix {
 public:
  DenseMatrix() = default;
  /// BF16 or FP16 when every value is exactly representable, else FP32. `bias` has `rows` values or none.
  DenseMatrix(int64_t rows, int64_t columns, const RowReader& read, std::vector<float> bias,
              ThreadPool& pool);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  WeightType type() const { return type_; }
  /// Bytes that one pass over the matrix reads.
  int64_t bytes() const;
  /// One row as FP32 (an embedding look-up).
  void row(int64_t row, float* out) const;
  /// The product on the calling thread, for at most most_interleaved() tokens that lie side by side in every
  /// column: value k of token t is x[k * tokens + t]. The sums are those of dense_matmul.
  void multiply_interleaved(const float* x, int64_t tokens, float* y, int64_t y_stride) const;
  int64_t most_interleaved() const;

 private:
  friend void dense_matmul(const DenseMatrix&, const float*, int64_t, int64_t, ThreadPool&, float*, int64_t);
  bool pack(WeightType type, const RowReader& read, ThreadPool& pool);

  int64_t rows_ = 0, columns_ = 0, panel_ = 0;
  WeightType type_ = WeightType::F32;
  Isa isa_ = Isa::Generic;
  std::shared_ptr<uint32_t> words_;  // FP32 bits, or two 16-bit values a word
  size_t word_count_ = 0;
  std::vector<float> bias_;
};

/// y [tokens, rows], rows `y_stride` floats apart, from x [tokens, columns], rows `x_stride` apart. Every
/// output is one FP32 sum in column order (with FMA where the ISA has it), then the bias: it does not depend
/// on `tokens` or threads.
void dense_matmul(const DenseMatrix& weights, const float* x, int64_t tokens, int64_t x_stride,
                  ThreadPool& pool, float* y, int64_t y_stride);

}  // namespace quatrain::ops
