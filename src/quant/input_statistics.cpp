#include "quant/input_statistics.h"

#include <algorithm>

namespace quatrain {

torch::Tensor upper_gram(const torch::Tensor& x) {
  constexpr int64_t kGramBlock = 192;
  if (!x.is_cpu()) return x.t().matmul(x).triu();
  const int64_t width = x.size(1);
  torch::Tensor gram = torch::zeros({width, width}, torch::kFloat);
  for (int64_t begin = 0; begin < width; begin += kGramBlock) {
    const int64_t end = std::min(begin + kGramBlock, width);
    torch::Tensor rows = gram.slice(0, begin, end).slice(1, begin, width);
    torch::mm_out(rows, x.slice(1, begin, end).t(), x.slice(1, begin, width));
  }
  return gram;
}

torch::Tensor InputStatistics::hessian() const {
  return (hessian_.triu() + hessian_.triu(1).t()) / static_cast<double>(tokens_);
}

void InputStatistics::accumulate(torch::Tensor& sum, const torch::Tensor& part) {
  if (!sum.defined()) sum = torch::zeros(part.sizes(), part.options().dtype(torch::kDouble));
  sum += part;
}

}  // namespace quatrain
