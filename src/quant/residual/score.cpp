#include "quant/residual/score.h"

#include "base/number_format.h"
#include "quant/residual/select.h"

namespace quatrain {

std::vector<double> block_scores(std::string_view kind, const torch::Tensor& weight,
                                 const torch::Tensor& steps, const torch::Tensor& sensitivity,
                                 int64_t block) {
  const auto squared_error = [&](double part, double low, double high) {
    const torch::Tensor step = steps * part;
    const torch::Tensor codes = torch::round(weight / step).clamp(low, high);
    return (weight - codes * step).to(torch::kDouble).square();
  };
  const bool largest = kind == "weight-max", delta = kind == "delta-hessian";
  torch::Tensor gain = largest ? weight.abs().to(torch::kDouble) : squared_error(1, -8, 7);
  if (delta) gain = gain - squared_error(0.0625, -128, 127);
  if (delta || kind == "hessian-diagonal") gain = gain * sensitivity;
  const int64_t block_rows = (weight.size(0) + kResidualRows - 1) / kResidualRows,
                block_columns = (weight.size(1) + block - 1) / block;
  const torch::Tensor by_block = torch::constant_pad_nd(gain, {0, block_columns * block - weight.size(1), 0,
                                                               block_rows * kResidualRows - weight.size(0)})
                                     .reshape({block_rows, kResidualRows, block_columns, block});
  const torch::Tensor scores = (largest ? by_block.amax({1, 3}) : by_block.sum({1, 3})).cpu().contiguous();
  return {scores.data_ptr<double>(), scores.data_ptr<double>() + scores.numel()};
}

std::map<std::string, std::vector<int32_t>> choose_globally(
    const std::map<std::string, ScoredMatrix>& matrices, double budget) {
  std::vector<double> all;
  for (const auto& [name, matrix] : matrices)
    for (const double score : matrix.scores) all.push_back(matrix.power > 0 ? score / matrix.power : 0);
  const std::vector<int32_t> chosen = select_blocks(all, budget);
  std::map<std::string, std::vector<int32_t>> blocks;
  auto next = chosen.begin();
  int32_t first = 0;
  for (const auto& [name, matrix] : matrices) {
    const auto end = first + static_cast<int32_t>(matrix.scores.size());
    std::vector<int32_t>& own = blocks[name];
    for (; next != chosen.end() && *next < end; ++next) own.push_back(*next - first);
    first = end;
  }
  return blocks;
}

}  // namespace quatrain
