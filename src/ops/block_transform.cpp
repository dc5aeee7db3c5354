#include "ops/block_transform.h"

#include <algorithm>

#include "base/buffer.h"
#include "base/error.h"

namespace quatrain::ops {

BlockTransform::BlockTransform(int64_t order, std::span<const float> values,
                               std::vector<int32_t> matrix_of_block, std::vector<float> offset)
    : order_(order), matrix_of_block_(std::move(matrix_of_block)), offset_(std::move(offset)) {
  require(order > 0 && !matrix_of_block_.empty() && std::ssize(values) % (order * order) == 0,
          "{} values are no matrices of {} x {}", values.size(), order, order);
  const int64_t count = std::ssize(values) / (order * order);
  for (const int32_t matrix : matrix_of_block_)
    require(matrix >= 0 && matrix < count, "a block takes the transform {} of {}", matrix, count);
  require(offset_.empty() || std::ssize(offset_) == width(), "{} offsets for {} columns", offset_.size(),
          width());
  ThreadPool alone(1);
  for (int64_t m = 0; m < count; ++m) {
    const float* matrix = values.data() + m * order * order;
    const auto transposed = [&](int64_t begin, int64_t end, float* out) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t k = 0; k < order; ++k) *out++ = matrix[k * order + row];
    };
    matrices_.emplace_back(order, order, transposed, std::vector<float>{}, alone);
  }
}

int64_t BlockTransform::bytes() const {
  int64_t bytes = 0;
  for (const int32_t matrix : matrix_of_block_) bytes += matrices_[static_cast<size_t>(matrix)].bytes();
  return bytes;
}

void BlockTransform::apply(float* x, int64_t rows, int64_t stride, int64_t begin, int64_t end) const {
  thread_local AlignedBuffer<float> interleaved;
  const int64_t most = matrices_.front().most_interleaved();
  interleaved.resize(static_cast<size_t>(most * order_));
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    for (int64_t block = begin; block < end; ++block) {
      float* values = x + first * stride + block * order_;
      const float* offset = offset_.empty() ? nullptr : offset_.data() + block * order_;
      for (int64_t t = 0; t < count; ++t)
        for (int64_t k = 0; k < order_; ++k) {
          const float value = values[t * stride + k];
          interleaved.data()[k * count + t] = offset == nullptr ? value : value - offset[k];
        }
      matrices_[static_cast<size_t>(matrix_of_block_[static_cast<size_t>(block)])].multiply_interleaved(
          interleaved.data(), count, values, stride);
    }
  }
}

}  // namespace quatrain::ops
