#include "quant/weights/gptq.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "quant/weights/planes.h"
#include "quant/weights/scales.h"

namespace quatrain {
namespace {

constexpr double kMostDamping = 1;

// Upper Cholesky factor of (H + damping mean(diag H) I)^-1, FP64; nullopt when H is not positive definite.
std::optional<torch::Tensor> inverse_factor(const torch::Tensor& hessian, double damping) {
  torch::Tensor damped = hessian.clone();
  damped.diagonal().add_(damping * hessian.diagonal().mean());
  const auto [lower, failed] = torch::linalg_cholesky_ex(damped);
  if (failed.item<int>() != 0) return std::nullopt;
  const auto [upper, failed_again] = torch::linalg_cholesky_ex(torch::cholesky_inverse(lower), true);
  if (failed_again.item<int>() != 0 || !torch::isfinite(upper).all().item<bool>()) return std::nullopt;
  return upper;
}

class Gptq {
 public:
  Gptq(const std::string& name, const torch::Tensor& weight, const torch::Tensor& hessian,
       const WeightFormat& format, std::vector<int32_t> selected, const GptqOptions& options)
      : name_(name),
        format_(format),
        options_(options),
        rows_(weight.size(0)),
        columns_(weight.size(1)),
        group_(format.group == 0 ? columns_ : format.group),
        // Whole groups in a block: a group's weights are all up to date when its scale is taken.
        block_(format.group == 0 ? options.block : (options.block + group_ - 1) / group_ * group_),
        weight_(weight.to(torch::kFloat).clone()),
        hessian_(hessian.to(torch::kDouble).clone()) {
    require(hessian.dim() == 2 && hessian.size(0) == columns_ && hessian.size(1) == columns_,
            "{}: the Hessian is {} x {}, the matrix has {} columns", name, hessian.size(0), hessian.size(1),
            columns_);
    require(!options.act_order || options.static_groups || format.group == 0,
            "{}: act-order needs static groups", name);
    if (format.bits == 8) selected = all_blocks(rows_, columns_, format.residual_block);
    result_.planes = make_planes(rows_, columns_, format.group, format.residual_block, std::move(selected));
  }

  GptqResult run() {
    const torch::Tensor dead = hessian_.diagonal() == 0;
    hessian_.diagonal().masked_fill_(dead, 1);
    weight_.index_put_({torch::indexing::Slice(), dead}, 0);
    scales_ = torch::empty({rows_, result_.planes.groups()}, torch::kFloat);
    if (format_.group == 0 || options_.static_groups)
      for (int64_t g = 0; g < scales_.size(1); ++g) set_scales(g);
    mark_residual_columns();

    order_ = options_.act_order ? torch::argsort(hessian_.diagonal(), 0, true) : torch::arange(columns_);
    const torch::Tensor ordered = hessian_.index_select(0, order_).index_select(1, order_);
    std::optional<torch::Tensor> factor;
    double damping = options_.damping;
    if (torch::isfinite(ordered).all().item<bool>())
      for (; damping <= kMostDamping * 1.0001; damping *= 10) {
        factor = inverse_factor(ordered, damping);
        if (factor) break;
        log_warn("{}: the Hessian is not positive definite with damping {}", name_, damping);
      }
    if (!factor) return round_to_nearest();
    result_.damping = damping;
    round_columns(factor->to(torch::kFloat));
    store();
    return std::move(result_);
  }

 private:
  // Scales of group g from the weights as they are now.
  void set_scales(int64_t g) {
    const torch::Tensor part =
        weight_.slice(1, g * group_, std::min((g + 1) * group_, columns_)).contiguous();
    const ScaleRule rule{format_.bits, format_.clip, format_.group != 0};
    const auto width = static_cast<size_t>(part.size(1));
    for (int64_t row = 0; row < rows_; ++row) {
      const float scale =
          weight_scale({part.data_ptr<float>() + static_cast<size_t>(row) * width, width}, rule);
      result_.planes.scale[static_cast<size_t>(row * result_.planes.groups() + g)] = scale;
      scales_.data_ptr<float>()[row * scales_.size(1) + g] = scale;
    }
  }

  // eight_[row, block column]: whether that block keeps its low nibble.
  void mark_residual_columns() {
    const NibblePlanes& planes = result_.planes;
    const torch::Tensor kept = torch::tensor(planes.residual_index, torch::kInt).to(torch::kLong);
    const torch::Tensor blocks =
        torch::zeros({planes.block_rows() * planes.block_columns()}, torch::kBool).index_fill_(0, kept, true);
    eight_ = blocks.reshape({planes.block_rows(), planes.block_columns()})
                 .repeat_interleave(kResidualRows, 0)
                 .slice(0, 0, rows_);
  }

  torch::Tensor codes_of(const torch::Tensor& weights, int64_t column) const {
    const torch::Tensor steps = weights / scales_.select(1, column / group_);
    return torch::where(eight_.select(1, column / format_.residual_block),
                        torch::round(steps * 16).clamp(-128, 127), torch::round(steps).clamp(-8, 7) * 16);
  }

  // `factor`: FP32 upper triangle [in, in] in the order of order_.
  void round_columns(const torch::Tensor& factor) {
    weight_ = weight_.index_select(1, order_);
    codes_ = torch::empty({rows_, columns_}, torch::kFloat);
    const bool scales_on_the_way = format_.group != 0 && !options_.static_groups;
    const auto* columns = order_.data_ptr<int64_t>();
    double loss = 0;
    for (int64_t begin = 0; begin < columns_; begin += block_) {
      const int64_t end = std::min(begin + block_, columns_);
      torch::Tensor errors = torch::empty({rows_, end - begin}, torch::kFloat);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t column = columns[i];
        if (scales_on_the_way && column % group_ == 0) set_scales(column / group_);
        const torch::Tensor weights = weight_.select(1, i);
        const torch::Tensor codes = codes_of(weights, column);
        const torch::Tensor rounded = scales_.select(1, column / group_) * codes * 0.0625;
        const torch::Tensor error = (weights - rounded) / factor[i][i];
        loss += error.to(torch::kDouble).pow(2).sum().item<double>();
        weight_.slice(1, i + 1, end) -= error.unsqueeze(1) * factor[i].slice(0, i + 1, end).unsqueeze(0);
        errors.select(1, i - begin).copy_(error);
        codes_.select(1, column).copy_(codes);
      }
      weight_.slice(1, end, columns_) -= errors.matmul(factor.slice(0, begin, end).slice(1, end, columns_));
    }
    result_.loss = loss;
  }

  void store() {
    const torch::Tensor codes = codes_.to(torch::kInt).contiguous();
    for (int64_t row = 0; row < rows_; ++row)
      store_codes(result_.planes, row,
                  {codes.data_ptr<int>() + row * columns_, static_cast<size_t>(columns_)});
  }

  GptqResult round_to_nearest() {
    log_warn("{}: no damping up to {} makes the Hessian positive definite; rounded to nearest", name_,
             kMostDamping);
    for (int64_t g = 0; g < scales_.size(1); ++g) set_scales(g);
    const torch::Tensor weights = weight_.contiguous();
    for (int64_t row = 0; row < rows_; ++row)
      store_row(result_.planes, row,
                {weights.data_ptr<float>() + row * columns_, static_cast<size_t>(columns_)});
    result_.fallback = true;
    return std::move(result_);
  }

  const std::string& name_;
  const WeightFormat& format_;
  const GptqOptions& options_;
  int64_t rows_, columns_, group_, block_;
  torch::Tensor weight_, hessian_, scales_, eight_, order_, codes_;
  GptqResult result_;
};

}  // namespace

GptqResult quantize_gptq(const std::string& name, const torch::Tensor& weight, const torch::Tensor& hessian,
                         const WeightFormat& format, const std::vector<int32_t>& selected,
                         const GptqOptions& options) {
  require(weight.dim() == 2 && torch::isfinite(weight).all().item<bool>(),
          "{}: the weight is no finite matrix", name);
  const c10::InferenceMode inference;
  return Gptq(name, weight, hessian, format, selected, options).run();
}

}  // namespace quatrain
