#include "ops/embedding.h"

#include <algorithm>

namespace quatrain::ops {

Embedding::Embedding(std::shared_ptr<const DenseMatrix> matrix) : matrix_(std::move(matrix)) {}

Embedding::Embedding(std::shared_ptr<const NibbleMatrix> matrix) : nibbles_(std::move(matrix)) {}

Embedding::Embedding(NibblePlanes planes) : planes_(std::move(planes)) {
  const std::vector<int32_t>& index = planes_.residual_index;
  for (int64_t rows16 = 0; rows16 <= planes_.block_rows(); ++rows16)
    first_block_.push_back(std::lower_bound(index.begin(), index.end(), rows16 * planes_.block_columns()) -
                           index.begin());
}

int64_t Embedding::rows() const {
  return matrix_ ? matrix_->rows() : nibbles_ ? nibbles_->rows() : planes_.rows;
}

int64_t Embedding::columns() const {
  return matrix_ ? matrix_->columns() : nibbles_ ? nibbles_->columns() : planes_.columns;
}

int64_t Embedding::row_bytes() const {
  if (matrix_) return columns() * (matrix_->type() == WeightType::F32 ? 4 : 2);
  if (nibbles_) return nibbles_->bytes() / nibbles_->rows();
  const auto lo = static_cast<int64_t>(planes_.lo.size());
  return columns() / 2 + lo / std::max<int64_t>(1, planes_.rows) + planes_.groups() * 4;
}

void Embedding::look_up(int64_t token, float scale, float* out) const {
  if (matrix_)
    matrix_->row(token, out);
  else if (nibbles_)
    nibbles_->row(token, out);
  else
    unpack(token, out);
  if (scale != 1)
    for (int64_t k = 0; k < columns(); ++k) out[k] *= scale;
}

void Embedding::unpack(int64_t row, float* out) const {
  const int64_t columns = planes_.columns, block = planes_.residual_block, stride = (block + 1) / 2;
  const auto nibble = [](const uint8_t* bytes, int64_t i) {
    return i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4;
  };
  const uint8_t* hi = planes_.hi.data() + row * ((columns + 1) / 2);
  for (int64_t k = 0; k < columns; ++k) out[k] = static_cast<float>(16 * ((nibble(hi, k) ^ 8) - 8));

  const int64_t rows16 = row / kResidualRows;
  for (int64_t b = first_block_[static_cast<size_t>(rows16)];
       b < first_block_[static_cast<size_t>(rows16 + 1)]; ++b) {
    const int64_t first =
        (planes_.residual_index[static_cast<size_t>(b)] - rows16 * planes_.block_columns()) * block;
    const uint8_t* lo = planes_.lo.data() + (b * kResidualRows + row % kResidualRows) * stride;
    for (int64_t k = first; k < std::min(first + block, columns); ++k)
      out[k] += static_cast<float>(nibble(lo, k - first));
  }
  const float* scale = planes_.scale.data() + row * planes_.groups();
  const int64_t group = planes_.weight_group == 0 ? columns : planes_.weight_group;
  for (int64_t k = 0; k < columns; ++k) out[k] *= scale[k / group] * 0.0625f;
}

}  // namespace quatrain::ops
