#include "quant/transforms/smooth.h"

#include <limits>

#include "quant/layer_sites.h"

namespace quatrain {
namespace {

constexpr double kSmallestScale = 1e-5;
constexpr int kFirstAlpha = 30, kLastAlpha = 95, kAlphaStep = 5;  // per cent

void divide_rows(ReferenceLinear& linear, const torch::Tensor& scale) {
  linear.weight = (linear.weight / scale.unsqueeze(1)).contiguous();
  if (linear.bias.defined()) linear.bias = linear.bias / scale;
}

}  // namespace

torch::Tensor smoothing_scale(const torch::Tensor& largest_input, const torch::Tensor& largest_weight,
                              double alpha) {
  const torch::Tensor input = largest_input.to(torch::kDouble),
                      weight = largest_weight.to(torch::kDouble).clamp_min(kSmallestScale);
  const torch::Tensor scale = (input.pow(alpha) / weight.pow(1 - alpha)).clamp_min(kSmallestScale);
  return torch::where(input > 0, scale, torch::ones_like(scale)).to(torch::kFloat);
}

torch::Tensor pooled_heads(const torch::Tensor& by_query_channel, const ModelConfig& config) {
  return by_query_channel.reshape({config.kv_heads, config.heads / config.kv_heads, config.head_dim})
      .amax(1)
      .reshape({-1});
}

torch::Tensor spread_heads(const torch::Tensor& by_kv_channel, const ModelConfig& config) {
  return by_kv_channel.reshape({config.kv_heads, config.head_dim})
      .repeat_interleave(config.heads / config.kv_heads, 0)
      .reshape({-1});
}

torch::Tensor largest_weights(DecoderLayer& layer, const ModelConfig& config, Site site) {
  torch::Tensor largest;
  for (const ReferenceLinear* linear : linears_at(layer, site)) {
    const torch::Tensor own = linear->weight.abs().amax(0);
    largest = largest.defined() ? torch::maximum(largest, own) : own;
  }
  return site == Site::Output ? pooled_heads(largest, config) : largest;
}

void smooth(DecoderLayer& layer, const ModelConfig& config, Site site, const torch::Tensor& scale) {
  const torch::Tensor columns = site == Site::Output ? spread_heads(scale, config) : scale;
  for (ReferenceLinear* linear : linears_at(layer, site))
    linear->weight = (linear->weight * columns).contiguous();
  if (site == Site::Output) {
    divide_rows(layer.v, scale);
  } else if (site == Site::Down) {
    for (DecoderLayer::Mlp& mlp : layer.mlps) divide_rows(mlp.up, scale);
  } else {
    torch::Tensor& gain = site == Site::Qkv       ? layer.input_norm
                          : config.sandwich_norms ? layer.pre_mlp_norm
                                                  : layer.post_attention_norm;
    gain = (gain + config.norm_offset) / scale - config.norm_offset;
    if (site == Site::GateUp && layer.router.defined()) layer.router = layer.router * scale;
  }
}

torch::Tensor site_scale(DecoderLayer& layer, const ModelConfig& config, Site site, const SiteInput& input,
                         double alpha) {
  return smoothing_scale(site == Site::Output ? pooled_heads(input.largest, config) : input.largest,
                         largest_weights(layer, config, site), alpha);
}

double search_alpha(const std::function<double(double)>& error) {
  double best = 0, least = std::numeric_limits<double>::infinity();
  for (int percent = kFirstAlpha; percent <= kLastAlpha; percent += kAlphaStep) {
    const double alpha = percent / 100.0, now = error(alpha);
    if (now < least || percent == kFirstAlpha) {
      least = now;
      best = alpha;
    }
  }
  return best;
}

}  // namespace quatrain
