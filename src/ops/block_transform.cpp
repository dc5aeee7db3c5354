#include "ops/block_transform.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/buffer.h"
#include "base/error.h"
#include "ops/cpu/nibble_memory.h"
#include "ops/cpu/select.h"

namespace quatrain::ops {
namespace {

constexpr float kLargestCode = 127;

// The powers of two of which every value of a column is at most 127; empty where one is no whole number of
// them.
std::vector<float> byte_steps(std::span<const float> matrix, int64_t order) {
  std::vector<float> steps(static_cast<size_t>(order));
  for (int64_t j = 0; j < order; ++j) {
    float largest = 0;
    for (int64_t k = 0; k < order; ++k)
      largest = std::max(largest, std::fabs(matrix[static_cast<size_t>(k * order + j)]));
    if (!std::isfinite(largest)) return {};
    // largest in [2^(e-1), 2^e): with a step of 2^(e-7) it is below 128 of them.
    int exponent = 0;
    std::frexp(largest, &exponent);
    const float step = std::ldexp(1.0f, std::max(exponent - 7, -126));
    for (int64_t k = 0; k < order; ++k) {
      const float code = matrix[static_cast<size_t>(k * order + j)] / step;
      if (code != std::rint(code) || std::fabs(code) > kLargestCode) return {};
    }
    steps[static_cast<size_t>(j)] = step;
  }
  return steps;
}

ByteKernel byte_kernel() {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::Avx512Vnni:
      return byte_transform_avx512vnni;
    case Isa::AvxVnni:
    case Isa::Avx2:
      return byte_transform_avx2;
    default:
      break;
  }
#endif
  return byte_transform_generic;
}

}  // namespace

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
  const int64_t columns = (order + kByteColumns - 1) / kByteColumns * kByteColumns;
  const int64_t words = (order + 3) / 4, size = columns * words * 4;
  ThreadPool alone(1);
  for (int64_t m = 0; m < count; ++m) {
    const auto matrix =
        values.subspan(static_cast<size_t>(m * order * order), static_cast<size_t>(order * order));
    Matrix& packed = matrices_.emplace_back();
    if (order <= kMostByteOrder) packed.step = byte_steps(matrix, order);
    if (!packed.step.empty()) {
      if (!codes_) codes_ = allocate_packed(static_cast<size_t>(count * size));
      uint8_t* codes = codes_.get() + m * size;
      std::memset(codes, 128, static_cast<size_t>(size));
      for (int64_t k = 0; k < order; ++k)
        for (int64_t j = 0; j < order; ++j)
          codes[(k / 4 * columns + j) * 4 + k % 4] =
              static_cast<uint8_t>(128 + static_cast<int>(matrix[static_cast<size_t>(k * order + j)] /
                                                          packed.step[static_cast<size_t>(j)]));
      packed.step.resize(static_cast<size_t>(columns), 0.0f);
      packed.bytes = {order, columns, words, codes, packed.step.data()};
      continue;
    }
    const auto transposed = [&](int64_t begin, int64_t end, float* out) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t k = 0; k < order; ++k) *out++ = matrix[static_cast<size_t>(k * order + row)];
    };
    packed.dense = DenseMatrix(order, order, transposed, std::vector<float>{}, alone);
  }
}

int64_t BlockTransform::bytes() const {
  int64_t bytes = 0;
  for (const int32_t index : matrix_of_block_) {
    const Matrix& matrix = matrices_[static_cast<size_t>(index)];
    bytes +=
        matrix.bytes.codes != nullptr ? matrix.bytes.columns * matrix.bytes.words * 4 : matrix.dense.bytes();
  }
  return bytes;
}

void BlockTransform::apply(float* x, int64_t rows, int64_t stride, int64_t begin, int64_t end) const {
  const ByteKernel kernel = byte_kernel();
  for (int64_t block = begin; block < end; ++block) {
    float* values = x + block * order_;
    const float* offset = offset_.empty() ? nullptr : offset_.data() + block * order_;
    const Matrix& matrix = matrices_[static_cast<size_t>(matrix_of_block_[static_cast<size_t>(block)])];
    if (matrix.bytes.codes == nullptr) {
      apply_dense(matrix.dense, offset, rows, values, stride);
      continue;
    }
    for (int64_t row = 0; row < rows; row += kByteTokens)
      kernel(matrix.bytes, offset, std::min(kByteTokens, rows - row), values + row * stride, stride);
  }
}

void BlockTransform::apply_dense(const DenseMatrix& matrix, const float* offset, int64_t rows, float* x,
                                 int64_t stride) const {
  thread_local AlignedBuffer<float> interleaved;
  const int64_t most = matrix.most_interleaved();
  interleaved.resize(static_cast<size_t>(most * order_));
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    float* values = x + first * stride;
    for (int64_t t = 0; t < count; ++t)
      for (int64_t k = 0; k < order_; ++k) {
        const float value = values[t * stride + k];
        interleaved.data()[k * count + t] = offset == nullptr ? value : value - offset[k];
      }
    matrix.multiply_interleaved(interleaved.data(), count, values, stride);
  }
}

}  // namespace quatrain::ops
