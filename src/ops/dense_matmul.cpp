#include "ops/dense_matmul.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/half.h"
#include "ops/cpu/dense_matmul.h"
#include "ops/cpu/nibble_memory.h"
#include "ops/cpu/select.h"

namespace quatrain::ops {
namespace {

constexpr int64_t kRowsAtATime =
    128;  // rows that a thread reads before it packs them: a multiple of every panel

constexpr float kNoBias[64] = {};  // at least a panel

const DenseKernel& kernel_of(Isa isa) {
  return select_kernel(isa, dense_kernel_generic, dense_kernel_avx2, dense_kernel_avx512);
}

bool is_bf16(float value) {
  return (std::bit_cast<uint32_t>(value) & 0xFFFF) == 0;
}

bool is_fp16(float value) {
  return std::bit_cast<uint32_t>(fp16_to_float(float_to_fp16(value))) == std::bit_cast<uint32_t>(value);
}

bool fits(WeightType type, std::span<const float> values) {
  if (type == WeightType::BF16) return std::all_of(values.begin(), values.end(), is_bf16);
  if (type == WeightType::F16) return std::all_of(values.begin(), values.end(), is_fp16);
  return true;
}

// Where row r of a panel stands in a column's values. BF16 pairs row r with row r + panel / 2 in one word, so
// that one load and two bit operations give both vectors.
int64_t place(WeightType type, int64_t row, int64_t panel) {
  return type == WeightType::BF16 ? 2 * (row % (panel / 2)) + row / (panel / 2) : row;
}

}  // namespace

DenseMatrix::DenseMatrix(int64_t rows, int64_t columns, const RowReader& read, std::vector<float> bias,
                         ThreadPool& pool)
    : rows_(rows), columns_(columns), isa_(active_isa()), bias_(std::move(bias)) {
  require(rows > 0 && columns > 0, "a weight matrix of {} x {} has no elements", rows, columns);
  require(bias_.empty() || std::ssize(bias_) == rows, "a bias of {} values for {} rows", bias_.size(), rows);
  panel_ = kernel_of(isa_).panel;
  const int64_t padded = (rows + panel_ - 1) / panel_ * panel_;
  if (!bias_.empty()) bias_.resize(static_cast<size_t>(padded), 0.0f);

  // The first rows propose a type; should a later one not fit, the matrix is packed again as FP32.
  std::vector<float> sample(static_cast<size_t>(std::min<int64_t>(rows, 16) * columns));
  read(0, std::min<int64_t>(rows, 16), sample.data());
  WeightType type = WeightType::F32;
  if (fits(WeightType::F16, sample)) type = WeightType::F16;
  if (fits(WeightType::BF16, sample)) type = WeightType::BF16;
  if (!pack(type, read, pool)) pack(WeightType::F32, read, pool);
}

bool DenseMatrix::pack(WeightType type, const RowReader& read, ThreadPool& pool) {
  type_ = type;
  const int64_t panels = (rows_ + panel_ - 1) / panel_;
  const int64_t panel_values = panel_ * columns_;  // even: a panel is two vectors
  word_count_ = static_cast<size_t>(panels * (type == WeightType::F32 ? panel_values : panel_values / 2));
  const auto memory = allocate_packed(word_count_ * sizeof(uint32_t));
  words_ = {memory, reinterpret_cast<uint32_t*>(memory.get())};
  std::atomic<bool> exact{true};
  pool.parallel_for((rows_ + kRowsAtATime - 1) / kRowsAtATime, 1, [&](int64_t begin, int64_t end, int) {
    std::vector<float> values;
    for (int64_t block = begin; block < end && exact; ++block) {
      const int64_t row0 = block * kRowsAtATime;
      const int64_t count = std::min(kRowsAtATime, rows_ - row0);
      const int64_t padded = (count + panel_ - 1) / panel_ * panel_;
      values.assign(static_cast<size_t>(padded * columns_), 0.0f);
      read(row0, row0 + count, values.data());
      if (!fits(type, values)) {
        exact = false;
        return;
      }
      for (int64_t row = 0; row < padded; ++row) {
        const float* source = values.data() + row * columns_;
        const int64_t start = (row0 + row) / panel_ * panel_values + place(type, row % panel_, panel_);
        if (type == WeightType::F32) {
          for (int64_t k = 0; k < columns_; ++k)
            words_.get()[start + k * panel_] = std::bit_cast<uint32_t>(source[k]);
        } else {
          auto* halves = reinterpret_cast<uint16_t*>(words_.get()) + start;
          for (int64_t k = 0; k < columns_; ++k)
            halves[k * panel_] =
                type == WeightType::BF16 ? float_to_bf16(source[k]) : float_to_fp16(source[k]);
        }
      }
    }
  });
  return exact;
}

int64_t DenseMatrix::bytes() const {
  return static_cast<int64_t>(word_count_ * sizeof(uint32_t));
}

void DenseMatrix::row(int64_t row, float* out) const {
  const int64_t start = row / panel_ * panel_ * columns_ + place(type_, row % panel_, panel_);
  const auto* halves = reinterpret_cast<const uint16_t*>(words_.get());
  for (int64_t k = 0; k < columns_; ++k) {
    const auto at = static_cast<size_t>(start + k * panel_);
    out[k] = type_ == WeightType::F32    ? std::bit_cast<float>(words_.get()[at])
             : type_ == WeightType::BF16 ? bf16_to_float(halves[at])
                                         : fp16_to_float(halves[at]);
  }
}

int64_t DenseMatrix::most_interleaved() const {
  return kernel_of(isa_).tokens;
}

void DenseMatrix::multiply_interleaved(const float* x, int64_t tokens, float* y, int64_t y_stride) const {
  const DenseKernel& kernel = kernel_of(isa_);
  const int64_t panel_words = type_ == WeightType::F32 ? panel_ * columns_ : panel_ * columns_ / 2;
  for (int64_t row = 0, p = 0; row < rows_; row += panel_, ++p)
    kernel.run(type_, words_.get() + p * panel_words, columns_, x, tokens,
               bias_.empty() ? kNoBias : bias_.data() + row, std::min(panel_, rows_ - row), y + row,
               y_stride);
}

void dense_matmul(const DenseMatrix& weights, const float* x, int64_t tokens, int64_t x_stride,
                  ThreadPool& pool, float* y, int64_t y_stride) {
  if (tokens <= 0) return;
  const DenseKernel& kernel = kernel_of(weights.isa_);
  const int64_t columns = weights.columns_, panel = weights.panel_;
  require(x_stride >= columns && y_stride >= weights.rows_,
          "strides {} and {} are below {} columns and {} rows", x_stride, y_stride, columns, weights.rows_);

  // Blocks of nearly equal numbers of tokens, each interleaved [columns][block tokens] for the broadcasts.
  const int64_t blocks = (tokens + kernel.tokens - 1) / kernel.tokens;
  const auto first_token = [&](int64_t block) { return block * tokens / blocks; };
  static thread_local AlignedBuffer<float> interleaved;  // reused: a fresh one costs its page faults
  const float* packed = x;
  if (tokens > 1) {
    interleaved.resize(static_cast<size_t>(tokens * columns));
    float* to = interleaved.data();
    packed = to;
    pool.parallel_for(blocks, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = first_token(block), count = first_token(block + 1) - first;
        float* out = to + first * columns;
        for (int64_t t = 0; t < count; ++t)
          for (int64_t k = 0; k < columns; ++k) out[k * count + t] = x[(first + t) * x_stride + k];
      }
    });
  }

  const int64_t panel_words = weights.type_ == WeightType::F32 ? panel * columns : panel * columns / 2;
  const int64_t panels = (weights.rows_ + panel - 1) / panel;
  // A chunk is long enough (a quarter megabyte) to hide its claiming, short enough to balance the threads.
  const int64_t grain = std::clamp<int64_t>((1 << 16) / panel_words / std::max<int64_t>(1, tokens / 4), 1,
                                            std::max<int64_t>(1, panels / (2 * pool.threads())));
  pool.parallel_for(panels, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p) {
      const uint32_t* values = weights.words_.get() + p * panel_words;
      const float* bias = weights.bias_.empty() ? kNoBias : weights.bias_.data() + p * panel;
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t first = first_token(block), count = first_token(block + 1) - first;
        kernel.run(weights.type_, values, columns, packed + first * columns, count, bias,
                   std::min(panel, weights.rows_ - p * panel), y + first * y_stride + p * panel, y_stride);
      }
    }
  });
}

}  // namespace quatrain::ops
