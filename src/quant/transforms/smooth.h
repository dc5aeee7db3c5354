// SmoothQuant (arXiv 2211.10438): the range of input channels moves into the weights that meet them.
#pragma once

#include <torch/torch.h>

#include <functional>

#include "quant/reference/decoder_layer.h"
#include "quant/transforms/site_inputs.h"

namespace quatrain {

/// s_j = max|X_j|^alpha / max|W_:j|^(1 - alpha), at least 1e-5, from each channel's largest input and weight
/// (the latter at least 1e-5). A channel that no calibration token reached gets 1. FP32 [in].
torch::Tensor smoothing_scale(const torch::Tensor& largest_input, const torch::Tensor& largest_weight,
                              double alpha);

/// max|W_:j| over the linears that share the input, FP32 [in]; at Site::Output over the query heads of a KV
/// head too, FP32 [kv_heads * head_dim].
torch::Tensor largest_weights(DecoderLayer& layer, const ModelConfig& config, Site site);

/// One value for each KV channel out of one for each channel of o's input: the largest of its query heads.
torch::Tensor pooled_heads(const torch::Tensor& by_query_channel, const ModelConfig& config);
/// The other way: each query head takes its KV head's values.
torch::Tensor spread_heads(const torch::Tensor& by_kv_channel, const ModelConfig& config);

/// x <- x / s, W <- W diag(s) at `site`; 1 / s goes into the gain of the norm before it (Qkv, GateUp), into
/// the rows of v and its bias (Output; s FP32 [kv_heads * head_dim]) or into the rows of up and its bias
/// (Down). In a mixture of experts all share s, and the router, which reads the norm too, takes it at GateUp.
/// The layer's function stays, but for rounding.
void smooth(DecoderLayer& layer, const ModelConfig& config, Site site, const torch::Tensor& scale);

/// smoothing_scale() of a site from its inputs and weights as they are now.
torch::Tensor site_scale(DecoderLayer& layer, const ModelConfig& config, Site site, const SiteInput& input,
                         double alpha);

/// The alpha in {0.30, 0.35, ..., 0.95} of least error(alpha); of equal errors the smaller alpha.
double search_alpha(const std::function<double(double)>& error);

}  // namespace quatrain
