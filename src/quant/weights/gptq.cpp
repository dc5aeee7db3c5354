#include "quant/weights/gptq.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/isa_clones.h"
#include "base/log.h"
#include "quant/reference/device.h"
#include "quant/residual/score.h"
#include "quant/residual/select.h"
#include "quant/weights/planes.h"
#include "quant/weights/scales.h"

namespace quatrain {
namespace {

constexpr double kMostDamping = 1, kLeastRaised = 1e-4;  // from 0 too it rises in a few steps

// weights[i] -= e factors[i]
QUATRAIN_ISA_CLONES void subtract_multiple(float* weights, const float* factors, float e, int64_t count) {
  for (int64_t i = 0; i < count; ++i) weights[i] -= e * factors[i];
}

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
        // A block a group where scales are taken on the way: its weights are then all up to date.
        block_(format.group == 0 || options.static_groups ? options.block : group_),
        weight_(weight.to(torch::kFloat).clone()),
        hessian_(hessian.to(torch::kDouble).clone()) {
    require(hessian.dim() == 2 && hessian.size(0) == columns_ && hessian.size(1) == columns_,
            "{}: the Hessian is {} x {}, the matrix has {} columns", name, hessian.size(0), hessian.size(1),
            columns_);
    require(!options.act_order || options.static_groups || format.group == 0,
            "{}: act-order needs static groups", name);
    if (format.selected && format.bits == 4) selected = *format.selected;
    if (format.bits == 8) selected = all_blocks(rows_, columns_, format.residual_block);
    result_.planes = make_planes(rows_, columns_, format.group, format.residual_block, std::move(selected));
  }

  GptqResult run() {
    const torch::Tensor dead = hessian_.diagonal() == 0;
    hessian_.diagonal().masked_fill_(dead, 1);
    weight_.index_put_({torch::indexing::Slice(), dead}, 0);
    scales_ = torch::empty({rows_, result_.planes.groups()}, torch::kFloat);
    const bool choose = format_.bits == 4 && format_.residual_budget > 0 && !format_.selected;
    if (format_.group == 0 || options_.static_groups || choose) set_all_scales();
    if (choose) choose_blocks();
    mark_residual_columns();

    order_ = options_.act_order ? torch::argsort(hessian_.diagonal(), 0, true)
                                : torch::arange(columns_, hessian_.options().dtype(torch::kLong));
    const torch::Tensor ordered = hessian_.index_select(0, order_).index_select(1, order_);
    std::optional<torch::Tensor> factor;
    double damping = options_.damping;
    if (torch::isfinite(ordered).all().item<bool>())
      for (; damping <= kMostDamping * 1.0001; damping = std::max(10 * damping, kLeastRaised)) {
        factor = inverse_factor(ordered, damping);
        if (factor) break;
        log_warn("{}: the Hessian is not positive definite with damping {}", name_, damping);
      }
    if (!factor) return round_to_nearest();
    result_.damping = damping;
    round_columns(factor->to(torch::kFloat).contiguous());
    store();
    return std::move(result_);
  }

 private:
  // Rows in whole residual blocks.
  template <typename Body>
  void for_rows(Body body) {
    if (options_.pool == nullptr) return body(0, rows_);
    options_.pool->parallel_for((rows_ + kResidualRows - 1) / kResidualRows, 1,
                                [&](int64_t begin, int64_t end, int) {
                                  body(begin * kResidualRows, std::min(end * kResidualRows, rows_));
                                });
  }

  void set_all_scales() {
    const torch::Tensor weights = in_memory(weight_);
    for (int64_t g = 0; g < scales_.size(1); ++g)
      set_scales(weights.slice(1, g * group_, std::min((g + 1) * group_, columns_)), g);
  }

  // Scales of group g from its weights [out, columns of the group], which lie in memory row by row.
  void set_scales(const torch::Tensor& part, int64_t g) {
    const ScaleRule rule{format_.bits, format_.clip, format_.group != 0};
    const auto width = static_cast<size_t>(part.size(1));
    for_rows([&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const float scale = weight_scale({part.data_ptr<float>() + row * part.stride(0), width}, rule);
        result_.planes.scale[static_cast<size_t>(row * result_.planes.groups() + g)] = scale;
        scales_.data_ptr<float>()[row * scales_.size(1) + g] = scale;
      }
    });
  }

  // The blocks of highest score (WeightFormat::residual_score) under diag H.
  void choose_blocks() {
    NibblePlanes& planes = result_.planes;
    const int64_t block = format_.residual_block;
    const auto count = planes.block_rows() * planes.block_columns();
    const std::vector<double> scores =
        format_.residual_score == "random"
            ? random_scores(count, format_.seed, name_)
            : block_scores(format_.residual_score, weight_, scale_of_columns(), hessian_.diagonal(), block);
    std::vector<int32_t> selected =
        format_.residual_unit == "channel"
            ? select_block_columns(scores, planes.block_columns(), format_.residual_budget)
            : select_blocks(scores, format_.residual_budget);
    std::vector<float> scale = std::move(planes.scale);
    planes = make_planes(rows_, columns_, format_.group, block, std::move(selected));
    planes.scale = std::move(scale);
  }

  // The scale of every weight.
  torch::Tensor scale_of_columns() const {
    return scales_.to(weight_.device()).repeat_interleave(group_, 1).slice(1, 0, columns_);
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

  // The code of a weight in units of scale / 16.
  static float code_of(float weight, float scale, bool eight) {
    const float steps = weight / scale;
    return eight ? std::clamp(std::rint(16 * steps), -128.0f, 127.0f)
                 : 16 * std::clamp(std::rint(steps), -8.0f, 7.0f);
  }

  // `factor`: FP32 upper triangle [in, in], in the order of order_. Within a block of columns the errors go
  // from one to the next, then one product updates the rest. The former on the CPU whatever the device, since
  // a step is too small for a GPU: rows do not meet, each thread takes its own.
  void round_columns(const torch::Tensor& factor) {
    weight_ = weight_.index_select(1, order_).contiguous();
    codes_ = torch::empty({rows_, columns_}, torch::kInt);
    const int64_t groups = scales_.size(1);
    const torch::Tensor order = in_memory(order_), eight = eight_.contiguous();
    const auto* kept = eight.data_ptr<bool>();
    const torch::Tensor losses = torch::zeros({rows_}, torch::kDouble);
    for (int64_t begin = 0; begin < columns_; begin += block_) {
      const int64_t end = std::min(begin + block_, columns_), width = end - begin;
      const torch::Tensor open = in_memory(weight_.slice(1, begin, end));  // not looked at again in weight_
      const torch::Tensor own = in_memory(factor.slice(0, begin, end).slice(1, begin, end));
      if (scales_on_the_way()) set_scales(open, begin / group_);
      const torch::Tensor errors = torch::empty({rows_, width}, torch::kFloat);
      const auto* columns = order.data_ptr<int64_t>() + begin;
      for_rows([&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
          float* weights = open.data_ptr<float>() + row * width;
          float* error = errors.data_ptr<float>() + row * width;
          const float* scale = scales_.data_ptr<float>() + row * groups;
          int* codes = codes_.data_ptr<int>() + row * columns_;
          double loss = 0;
          for (int64_t i = 0; i < width; ++i) {
            const float step = scale[columns[i] / group_];
            const float code =
                code_of(weights[i], step, kept[row * eight.size(1) + columns[i] / format_.residual_block]);
            const float* factors = own.data_ptr<float>() + i * width;
            const float e = (weights[i] - step * code * 0.0625f) / factors[i];
            subtract_multiple(weights + i + 1, factors + i + 1, e, width - i - 1);
            error[i] = e;
            codes[columns[i]] = static_cast<int>(code);
            loss += static_cast<double>(e) * e;
          }
          losses.data_ptr<double>()[row] += loss;
        }
      });
      if (end < columns_)
        weight_.slice(1, end, columns_) -=
            errors.to(weight_.device()).matmul(factor.slice(0, begin, end).slice(1, end, columns_));
    }
    result_.loss = losses.sum().item<double>();
  }

  bool scales_on_the_way() const { return format_.group != 0 && !options_.static_groups; }

  void store() {
    for_rows([&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row)
        store_codes(result_.planes, row,
                    {codes_.data_ptr<int>() + row * columns_, static_cast<size_t>(columns_)});
    });
  }

  GptqResult round_to_nearest() {
    log_warn("{}: no damping up to {} makes the Hessian positive definite; rounded to nearest", name_,
             kMostDamping);
    set_all_scales();
    const torch::Tensor weights = in_memory(weight_);
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
