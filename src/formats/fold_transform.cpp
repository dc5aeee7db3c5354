#include "formats/fold_transform.h"

#include <cmath>

#include "base/error.h"
#include "base/hadamard_matrix.h"

namespace quatrain {
namespace {

// w <- D H w / sqrt(order) in every block: x D H / sqrt(order) is the transform. H = base (x) Sylvester.
void fold_hadamard(const Transform& transform, std::span<float> rows, int64_t width) {
  const auto [base, power] = factor_hadamard_order(transform.order);
  const int64_t order = transform.order, inner = int64_t{1} << power;
  const std::vector<int8_t> outer = hadamard_base_matrix(base);
  const std::vector<float> signs =
      hadamard_signs(width, order, transform.seed, transform.kind == "grouped-offset-hadamard");
  const double norm = 1 / std::sqrt(static_cast<double>(order));
  std::vector<double> block(static_cast<size_t>(order));
  for (size_t first = 0; first < rows.size(); first += static_cast<size_t>(order)) {
    float* weights = rows.data() + first;
    for (int64_t k = 0; k < order; ++k) block[static_cast<size_t>(k)] = weights[k];
    for (int64_t step = 1; step < inner; step *= 2)
      for (int64_t i = 0; i < order; ++i)
        if ((i & step) == 0) {
          double &a = block[static_cast<size_t>(i)], &b = block[static_cast<size_t>(i + step)];
          const double difference = a - b;
          a += b;
          b = difference;
        }
    const float* sign = signs.data() + static_cast<int64_t>(first) % width;
    for (int64_t i = 0; i < base; ++i)
      for (int64_t k = 0; k < inner; ++k) {
        double sum = 0;
        for (int64_t j = 0; j < base; ++j)
          sum += outer[static_cast<size_t>(i * base + j)] * block[static_cast<size_t>(j * inner + k)];
        weights[i * inner + k] = static_cast<float>(sign[i * inner + k] * sum * norm);
      }
  }
}

// w_b <- A_b w_b for x_b <- x_b A_b.
void fold_blocks(int64_t order, std::span<const float> matrices, std::span<float> rows, int64_t width) {
  std::vector<float> block(static_cast<size_t>(order));
  for (size_t first = 0; first < rows.size(); first += static_cast<size_t>(order)) {
    const float* matrix = matrices.data() + static_cast<int64_t>(first) % width * order;
    for (int64_t i = 0; i < order; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < order; ++j)
        sum += double{matrix[i * order + j]} * rows[first + static_cast<size_t>(j)];
      block[static_cast<size_t>(i)] = static_cast<float>(sum);
    }
    std::copy(block.begin(), block.end(), rows.begin() + static_cast<int64_t>(first));
  }
}

}  // namespace

void fold_transform(const Transform& transform, std::span<const float> stored, std::span<float> rows,
                    int64_t width, std::string_view site) {
  if (transform.kind == "none") return;
  const int64_t order = transform.order;
  require(order > 0 && width % order == 0 && (transform.kind != "hadamard" || order == width),
          "{}: a {} of order {} does not fit {} inputs", site, transform.kind, order, width);
  if (transform.kind == "block") {
    require(std::ssize(stored) == width * order, "{}: the transform's tensor {} has {} values, not {}", site,
            transform.tensor, stored.size(), width * order);
    return fold_blocks(order, stored, rows, width);
  }
  require(transform.kind == "hadamard" || transform.kind == "grouped-hadamard" ||
              transform.kind == "grouped-offset-hadamard",
          "{}: a transform of kind \"{}\" cannot be multiplied into the weights", site, transform.kind);
  fold_hadamard(transform, rows, width);
}

}  // namespace quatrain
