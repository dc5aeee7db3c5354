#include "quant/residual/study.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/progress.h"
#include "quant/layer_moments.h"
#include "quant/layer_sites.h"
#include "quant/residual/score.h"
#include "quant/residual/select.h"
#include "quant/transforms/smooth.h"
#include "quant/weights/scales.h"

namespace quatrain {
namespace {

constexpr int64_t kChannelBlock = 16;  // columns that the rule "channel" takes at once
constexpr Site kSites[] = {Site::Qkv, Site::Output, Site::GateUp, Site::Down};

// sum over rows of e H e^T.
double distortion(const torch::Tensor& error, const torch::Tensor& moments) {
  const torch::Tensor e = error.to(torch::kDouble);
  return (e.matmul(moments) * e).sum().item<double>();
}

class MatrixStudy {
 public:
  MatrixStudy(const ReferenceLinear& linear, const torch::Tensor& moments,
              const ResidualStudyOptions& options)
      : linear_(linear), moments_(moments), options_(options) {
    const torch::Tensor weight = linear.weight.contiguous();
    torch::Tensor scales = torch::empty({weight.size(0), 1}, torch::kFloat);
    for (int64_t row = 0; row < weight.size(0); ++row)
      scales.data_ptr<float>()[row] = weight_scale(
          {weight.data_ptr<float>() + row * weight.size(1), static_cast<size_t>(weight.size(1))}, {});
    steps_ = scales.expand_as(weight);
    error4_ = weight - torch::round(weight / steps_).clamp(-8, 7) * steps_;
    const torch::Tensor fine = steps_ * 0.0625;
    error8_ = weight - torch::round(weight / fine).clamp(-128, 127) * fine;
    whole_ = distortion(error4_, moments_);
  }

  void add_rows(std::vector<ResidualStudyRow>& rows) const {
    for (const char* rule : {"delta-hessian", "weight-max", "residual-norm", "random", "channel"}) {
      ResidualStudyRow row{linear_.name, rule, {}};
      for (const double budget : options_.budgets) row.recovered.push_back(recovered(rule, budget));
      rows.push_back(std::move(row));
    }
  }

 private:
  double recovered(const std::string& rule, double budget) const {
    const bool channel = rule == "channel";
    const int64_t block = channel ? kChannelBlock : options_.block, columns = steps_.size(1),
                  block_columns = (columns + block - 1) / block;
    const std::vector<double> scores =
        rule == "random" ? random_scores((steps_.size(0) + kResidualRows - 1) / kResidualRows * block_columns,
                                         options_.seed, linear_.name)
                         : block_scores(channel ? "delta-hessian" : rule, linear_.weight, steps_,
                                        moments_.diagonal(), block);
    const std::vector<int32_t> chosen =
        channel ? select_block_columns(scores, block_columns, budget) : select_blocks(scores, budget);
    torch::Tensor left = error4_.clone();
    for (const int32_t number : chosen) {
      const int64_t row = number / block_columns * kResidualRows, column = number % block_columns * block;
      const auto part = [&](const torch::Tensor& x) {
        return x.slice(0, row, row + kResidualRows).slice(1, column, column + block);
      };
      part(left).copy_(part(error8_));
    }
    return whole_ > 0 ? 1 - distortion(left, moments_) / whole_ : 0;
  }

  const ReferenceLinear& linear_;
  const torch::Tensor& moments_;
  const ResidualStudyOptions& options_;
  torch::Tensor steps_, error4_, error8_;
  double whole_ = 0;
};

void study_layer(DecoderLayer& layer, const ModelConfig& config, LayerInputs& inputs,
                 const ResidualStudyOptions& options, std::vector<ResidualStudyRow>& rows) {
  if (options.alpha > 0)
    for (const Site site : kSites) {
      const torch::Tensor scale = site_scale(layer, config, site, inputs.at(site), options.alpha);
      smooth(layer, config, site, scale);
      inputs.divide(site, site == Site::Output ? spread_heads(scale, config) : scale);
    }
  for (const Site site : kSites)
    for (const ReferenceLinear* linear : linears_at(layer, site))
      MatrixStudy(*linear, inputs.at(site).moments, options).add_rows(rows);
}

}  // namespace

std::vector<ResidualStudyRow> residual_study(const fs::path& model,
                                             const std::vector<std::vector<int32_t>>& samples,
                                             const ResidualStudyOptions& options) {
  const c10::InferenceMode inference;
  const std::unique_ptr<WeightSource> source = open_weight_source(model);
  const ModelConfig& config = source->config();
  require(config.moe.experts == 0 && !config.sandwich_norms,
          "{}: the residual study needs a dense model without norms behind its linears ({} is none)",
          model.string(), config.architecture);
  require(!options.layers.empty(), "{}: the residual study needs a layer", model.string());
  const auto [first, last] = std::minmax_element(options.layers.begin(), options.layers.end());
  require(*first >= 0 && *last < config.layers, "{}: layer {} is none of 0 to {}", model.string(),
          *first < 0 ? *first : *last, config.layers - 1);
  const int64_t deepest = *last;
  std::vector<torch::Tensor> hidden;
  {
    const torch::Tensor embedding = source->embedding();
    for (const std::vector<int32_t>& ids : samples)
      hidden.push_back(embedding.index_select(0, torch::tensor(ids, torch::kInt).to(torch::kLong)) *
                       config.embedding_scale);
  }
  std::vector<ResidualStudyRow> rows;
  Progress progress("layers", deepest + 1);
  for (int64_t index = 0; index <= deepest; ++index) {
    DecoderLayer layer(*source, index);
    const bool studied = std::count(options.layers.begin(), options.layers.end(), index) > 0;
    LayerInputs inputs({true, true, true, true}, 0, 0);
    SiteObserver observe;
    if (studied) observe = [&](Site site, const torch::Tensor& x) { inputs.add(site, x); };
    hidden = run_exact(layer, config, hidden, 0, 0, observe).output;
    if (studied) study_layer(layer, config, inputs, options, rows);
    progress.update(index + 1);
  }
  return rows;
}

std::string residual_study_text(const std::vector<ResidualStudyRow>& rows,
                                const ResidualStudyOptions& options) {
  std::string head = fmt::format("{:<44} {:<14}", "linear", "rule");
  for (const double budget : options.budgets)
    head += fmt::format(" {:>7}", fmt::format("{:g} %", 100 * budget));
  std::string text = head + "\n";
  std::map<std::string, std::pair<std::vector<double>, int64_t>> sums;
  std::vector<std::string> rules;
  const auto line = [&](const std::string& linear, const std::string& rule,
                        const std::vector<double>& recovered) {
    text += fmt::format("{:<44} {:<14}", linear, rule);
    for (const double share : recovered) text += fmt::format(" {:>7.1f}", 100 * share);
    text += "\n";
  };
  for (const ResidualStudyRow& row : rows) {
    line(row.linear, row.rule, row.recovered);
    auto& [sum, count] = sums[row.rule];
    if (count++ == 0) rules.push_back(row.rule);
    sum.resize(row.recovered.size());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += row.recovered[i];
  }
  for (const std::string& rule : rules) {
    auto& [sum, count] = sums[rule];
    for (double& share : sum) share /= static_cast<double>(count);
    line("mean", rule, sum);
  }
  return text;
}

Json residual_study_json(const std::vector<ResidualStudyRow>& rows, const ResidualStudyOptions& options) {
  Json list = Json::array();
  for (const ResidualStudyRow& row : rows)
    list.push_back({{"linear", row.linear}, {"rule", row.rule}, {"recovered", row.recovered}});
  return {{"budgets", options.budgets},
          {"alpha", options.alpha},
          {"block", options.block},
          {"matrices", std::move(list)}};
}

}  // namespace quatrain
