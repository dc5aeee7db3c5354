// Transforms merged into the linears of one layer: the same function, other numbers.
#pragma once

#include <torch/torch.h>

#include "quant/reference/decoder_layer.h"

namespace quatrain {

/// Values of KV head h become v R_h, undone in o's columns of its query heads by R_h^-T. FP64
/// [kv_heads, head_dim, head_dim], invertible.
void merge_value_transform(DecoderLayer& layer, const torch::Tensor& rotation);

/// The MLP's inner channels in the order `order` (int64 [intermediate]): rows of gate and up, columns of
/// down.
void permute_inner(DecoderLayer::Mlp& mlp, const torch::Tensor& order);

/// The input of `linear` becomes x A (transforms/block.h), W becomes W A^-T.
void merge_input_transform(ReferenceLinear& linear, const Transform& transform, const torch::Tensor& blocks);

}  // namespace quatrain
