#include "quant/layer_smoothing.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "quant/layer_sites.h"
#include "quant/policy.h"
#include "quant/reference/fake_quantize.h"
#include "quant/weights/rtn.h"

namespace quatrain {
namespace {

class LayerSmoother {
 public:
  LayerSmoother(DecoderLayer& layer, const ModelConfig& config, const Recipe& recipe,
                const QuantizationConfig& plan, LayerInputs& inputs, ThreadPool& pool)
      : layer_(layer), config_(config), recipe_(recipe), plan_(plan), inputs_(inputs), pool_(pool) {}

  Json run() {
    const Recipe::Transforms& transform = recipe_.transform;
    Json report = Json::array();
    if (transform.inputs == "smooth") report.push_back(smooth_site(Site::Qkv, "qkv"));
    if (transform.gate_up_kind() == "smooth") report.push_back(smooth_site(Site::GateUp, "gate_up"));
    if (transform.value == "smooth") report.push_back(smooth_site(Site::Output, "o"));
    if (transform.down == "smooth") report.push_back(smooth_site(Site::Down, "down"));
    return report;
  }

 private:
  Json smooth_site(Site site, const char* name) {
    Json entry = {{"site", name}};
    double alpha = recipe_.transform.alpha;
    if (alpha == Recipe::kSearchAlpha) {
      const torch::Tensor x = torch::cat(inputs_.at(site).rows);
      const torch::Tensor weight = weights_of(linears_at(layer_, site));
      const torch::Tensor exact = x.matmul(weight.t());
      std::map<double, double> errors;
      alpha = search_alpha([&](double candidate) {
        return errors[candidate] = output_error(site, candidate, x, weight, exact);
      });
      const double power = exact.square().sum().item<double>();
      entry["output_error"] = power > 0 ? std::sqrt(errors[alpha] / power) : 0;
    }
    entry["alpha"] = alpha;
    const torch::Tensor scale = site_scale(layer_, config_, site, inputs_.at(site), alpha);
    smooth(layer_, config_, site, scale);
    inputs_.divide(site, site == Site::Output ? spread_heads(scale, config_) : scale);
    return entry;
  }

  // Squared error of the outputs of `site` when it is smoothed by `alpha` and quantised.
  double output_error(Site site, double alpha, const torch::Tensor& x, const torch::Tensor& weight,
                      const torch::Tensor& exact) {
    torch::Tensor scale = site_scale(layer_, config_, site, inputs_.at(site), alpha);
    if (site == Site::Output) scale = spread_heads(scale, config_);
    const std::string& name = linears_at(layer_, site)[0]->name;
    const LinearPolicy& policy = plan_.linear(name);
    WeightFormat format = weight_format(recipe_, policy, name);
    const torch::Tensor sensitivity =
        (inputs_.sensitivity(site) / scale.to(torch::kDouble).square()).to(torch::kFloat).cpu().contiguous();
    format.column_weight.assign(sensitivity.data_ptr<float>(),
                                sensitivity.data_ptr<float>() + sensitivity.numel());
    const torch::Tensor smoothed = (weight * scale).cpu().contiguous();
    const int64_t columns = smoothed.size(1);
    const RowReader read = [&](int64_t begin, int64_t end) {
      const float* data = smoothed.data_ptr<float>();
      return std::vector<float>(data + begin * columns, data + end * columns);
    };
    const NibblePlanes planes = quantize_rtn(name, smoothed.size(0), columns, read, format, pool_).planes;
    torch::Tensor quantized = torch::empty_like(smoothed);
    for (int64_t row = 0; row < planes.rows; ++row)
      planes.dequantize_row(row, quantized.data_ptr<float>() + row * columns);
    const torch::Tensor product =
        fake_quantize(x / scale, policy.activation, name).matmul(quantized.to(x.device()).t());
    return (product - exact).square().sum().item<double>();
  }

  DecoderLayer& layer_;
  const ModelConfig& config_;
  const Recipe& recipe_;
  const QuantizationConfig& plan_;
  LayerInputs& inputs_;
  ThreadPool& pool_;
};

}  // namespace

Json smooth_layer(DecoderLayer& layer, const ModelConfig& config, const Recipe& recipe,
                  const QuantizationConfig& plan, LayerInputs& inputs, ThreadPool& pool) {
  return LayerSmoother(layer, config, recipe, plan, inputs, pool).run();
}

}  // namespace quatrain
