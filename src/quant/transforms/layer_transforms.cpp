#include "quant/transforms/layer_transforms.h"

#include "quant/transforms/block.h"

namespace quatrain {

void merge_value_transform(DecoderLayer& layer, const torch::Tensor& rotation) {
  const int64_t kv_heads = rotation.size(0), dim = rotation.size(1);
  // v R by heads: a row vector on the left of each head's matrix.
  const torch::Tensor turn = rotation.to(layer.v.weight.device(), torch::kDouble);
  const auto turned = [&](const torch::Tensor& by_row) {
    return apply_blocks(by_row.to(torch::kDouble), turn).to(torch::kFloat);
  };
  layer.v.weight = turned(layer.v.weight.t()).t().contiguous();
  if (layer.v.bias.defined()) layer.v.bias = turned(layer.v.bias.unsqueeze(0)).squeeze(0).contiguous();
  const int64_t shared = layer.o.weight.size(1) / (kv_heads * dim);
  layer.o.weight = merge_blocks(layer.o.weight, turn.repeat_interleave(shared, 0));
}

void permute_inner(DecoderLayer::Mlp& mlp, const torch::Tensor& order) {
  for (ReferenceLinear* linear : {&mlp.gate, &mlp.up}) {
    linear->weight = linear->weight.index_select(0, order);
    if (linear->bias.defined()) linear->bias = linear->bias.index_select(0, order);
  }
  mlp.down.weight = mlp.down.weight.index_select(1, order);
}

void merge_input_transform(ReferenceLinear& linear, const Transform& transform, const torch::Tensor& blocks) {
  const torch::Tensor own = blocks.to(linear.weight.device());
  linear.weight = merge_blocks(linear.weight, own);
  linear.input_transform = transform;
  linear.input_blocks = own;
}

}  // namespace quatrain
