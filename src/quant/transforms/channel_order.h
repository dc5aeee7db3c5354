// Input channels in descending order of their energy, so that residual blocks hold channels of one kind.
#pragma once

#include <torch/torch.h>

#include "quant/reference/decoder_layer.h"

namespace quatrain {

/// Channels from the largest to the smallest energy; of equal ones the lower number first. int64 [width].
torch::Tensor energy_order(const torch::Tensor& energy);

/// The order of o's input channels, int64 [heads * head_dim]: heads stay in place, inside each KV head its
/// channels descend by the energy summed over its query heads.
torch::Tensor value_order(const torch::Tensor& energy, const ModelConfig& config);

/// Value channels in the order of value_order(): rows of v (and its bias), columns of o.
void permute_values(DecoderLayer& layer, const ModelConfig& config, const torch::Tensor& order);

}  // namespace quatrain
