#include "quant/weights/rtn.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "quant/residual/select.h"
#include "quant/weights/planes.h"
#include "quant/weights/scales.h"

namespace quatrain {
namespace {

constexpr int64_t kChunkWeights = 1 << 18;  // read at once by one thread: 1 MiB of FP32, about one L2 cache

class RtnMatrix {
 public:
  RtnMatrix(const std::string& name, int64_t rows, int64_t columns, const RowReader& read,
            const WeightFormat& format, ThreadPool& pool)
      : name_(name), rows_(rows), columns_(columns), read_(read), format_(format), pool_(pool) {}

  QuantizedMatrix run() {
    std::vector<int32_t> selected;
    std::vector<float> scales;
    const bool all = format_.bits == 8 || format_.residual_budget >= 1;
    const NibblePlanes shape = make_planes(rows_, columns_, format_.group, format_.residual_block, {});
    if (all) {
      selected = all_blocks(rows_, columns_, format_.residual_block);
    } else if (format_.selected) {
      selected = *format_.selected;
    } else if (format_.residual_budget > 0) {
      const int64_t blocks = shape.block_rows() * shape.block_columns();
      require(blocks <= std::numeric_limits<int32_t>::max(), "{}: {} x {} has too many residual blocks",
              name_, rows_, columns_);
      const std::vector<double> scores = format_.residual_score == "random"
                                             ? random_scores(blocks, format_.seed, name_)
                                             : weight_scores(shape, scales);
      selected = format_.residual_unit == "channel"
                     ? select_block_columns(scores, shape.block_columns(), format_.residual_budget)
                     : select_blocks(scores, format_.residual_budget);
    }
    return encode(make_planes(rows_, columns_, format_.group, format_.residual_block, std::move(selected)),
                  std::move(scales));
  }

 private:
  // Calls body(row, weights) for every row; the 16 rows of a block stay on one thread.
  template <typename Body>
  void for_each_row(Body body) {
    const int64_t blocks = (rows_ + kResidualRows - 1) / kResidualRows;
    const int64_t grain = std::max<int64_t>(1, kChunkWeights / (kResidualRows * columns_));
    pool_.parallel_for(blocks, grain, [&](int64_t first, int64_t last, int) {
      // A single wide block (an embedding turned on its side) is still read in bounded pieces of whole rows.
      const int64_t end = std::min(last * kResidualRows, rows_);
      const int64_t step = std::max<int64_t>(1, kChunkWeights / columns_);
      for (int64_t row = first * kResidualRows; row < end; row += step) {
        const int64_t stop = std::min(row + step, end);
        const std::vector<float> weights = read_(row, stop);
        for (int64_t r = row; r < stop; ++r)
          body(r, std::span(weights).subspan(static_cast<size_t>((r - row) * columns_),
                                             static_cast<size_t>(columns_)));
      }
    });
  }

  void row_scales(std::span<const float> weights, float* scales) const {
    const int64_t group = format_.group == 0 ? columns_ : format_.group;
    const ScaleRule rule{format_.bits, format_.clip, format_.group != 0};
    for (int64_t begin = 0, g = 0; begin < columns_; begin += group, ++g)
      scales[g] = weight_scale(
          weights.subspan(static_cast<size_t>(begin), static_cast<size_t>(std::min(group, columns_ - begin))),
          rule);
  }

  std::vector<double> weight_scores(const NibblePlanes& shape, std::vector<float>& scales) {
    scales.resize(static_cast<size_t>(rows_ * shape.groups()));
    std::vector<double> scores(static_cast<size_t>(shape.block_rows() * shape.block_columns()));
    const int64_t group = format_.group == 0 ? columns_ : format_.group;
    const bool largest = format_.residual_score == "weight-max",
               delta = format_.residual_score == "delta-hessian";
    for_each_row([&](int64_t row, std::span<const float> weights) {
      float* row_scale = scales.data() + row * shape.groups();
      row_scales(weights, row_scale);
      double* row_score = scores.data() + row / kResidualRows * shape.block_columns();
      for (int64_t column = 0; column < columns_; ++column) {
        const float weight = weights[static_cast<size_t>(column)], scale = row_scale[column / group];
        double& score = row_score[column / format_.residual_block];
        if (largest) {
          score = std::max(score, static_cast<double>(std::fabs(weight)));
        } else {
          const float steps = weight / scale;
          const double residual = scale * std::clamp(std::rint(steps), -8.0f, 7.0f) - weight;
          const double left =
              delta ? scale * 0.0625f * std::clamp(std::rint(16.0f * steps), -128.0f, 127.0f) - weight : 0.0;
          score += delta_hessian(
              residual, left,
              format_.column_weight.empty() ? 1.0f : format_.column_weight[static_cast<size_t>(column)]);
        }
      }
    });
    return scores;
  }

  QuantizedMatrix encode(NibblePlanes planes, std::vector<float> scales) {
    const bool scales_known = !scales.empty();
    if (scales_known) planes.scale = std::move(scales);
    std::vector<double> errors(static_cast<size_t>(rows_)), norms(static_cast<size_t>(rows_));
    for_each_row([&](int64_t row, std::span<const float> weights) {
      if (!scales_known) row_scales(weights, planes.scale.data() + row * planes.groups());
      errors[static_cast<size_t>(row)] = store_row(planes, row, weights);
      norms[static_cast<size_t>(row)] =
          std::inner_product(weights.begin(), weights.end(), weights.begin(), 0.0, std::plus<double>(),
                             [](float a, float b) { return static_cast<double>(a) * b; });
    });
    return {std::move(planes), std::accumulate(errors.begin(), errors.end(), 0.0),
            std::accumulate(norms.begin(), norms.end(), 0.0)};
  }

  const std::string& name_;
  int64_t rows_, columns_;
  const RowReader& read_;
  const WeightFormat& format_;
  ThreadPool& pool_;
};

}  // namespace

QuantizedMatrix quantize_rtn(const std::string& name, int64_t rows, int64_t columns, const RowReader& read,
                             const WeightFormat& format, ThreadPool& pool) {
  require(rows > 0 && columns > 0, "{}: a matrix of {} x {} cannot be quantised", name, rows, columns);
  try {
    return RtnMatrix(name, rows, columns, read, format, pool).run();
  } catch (const Error& error) {
    const std::string text = error.what();
    if (text.find(name) != std::string::npos) throw;
    fail("{}: {}", name, text);
  }
}

}  // namespace quatrain
