#include "quant/transforms/block.h"

#include "base/error.h"
#include "quant/transforms/rotation.h"

namespace quatrain {

torch::Tensor constructed_blocks(const Transform& transform, int64_t width) {
  if (transform.kind == "none") return {};
  const bool offset = transform.kind == "grouped-offset-hadamard";
  require(transform.kind == "hadamard" || transform.kind == "grouped-hadamard" || offset,
          "a transform of kind \"{}\" is none that is constructed", transform.kind);
  const torch::Tensor whole = hadamard_rotation(width, transform.order, transform.seed, offset);
  std::vector<torch::Tensor> blocks;
  for (int64_t begin = 0; begin < width; begin += transform.order)
    blocks.push_back(whole.slice(0, begin, begin + transform.order).slice(1, begin, begin + transform.order));
  return torch::stack(blocks).to(torch::kFloat);
}

torch::Tensor apply_blocks(const torch::Tensor& x, const torch::Tensor& blocks) {
  if (!blocks.defined()) return x;
  if (blocks.size(0) == 1) return x.matmul(blocks[0]);
  if (x.requires_grad() || !x.is_cpu())  // mm_out() has no gradient; a GPU wants all blocks at once
    return x.reshape({x.size(0), blocks.size(0), blocks.size(1)})
        .transpose(0, 1)
        .bmm(blocks)
        .transpose(0, 1)
        .reshape(x.sizes());
  // Block by block into its columns: one batched product would need both turned on their side first.
  torch::Tensor out = torch::empty(x.sizes(), x.options());
  const int64_t width = blocks.size(1);
  for (int64_t block = 0; block < blocks.size(0); ++block) {
    torch::Tensor part = out.slice(1, block * width, (block + 1) * width);
    torch::mm_out(part, x.slice(1, block * width, (block + 1) * width), blocks[block]);
  }
  return out;
}

torch::Tensor merge_blocks(const torch::Tensor& weight, const torch::Tensor& blocks) {
  if (!blocks.defined()) return weight;
  const torch::Tensor inverse = torch::linalg_inv(blocks.to(torch::kDouble)).transpose(1, 2);
  return apply_blocks(weight.to(torch::kDouble), inverse).to(torch::kFloat).contiguous();
}

}  // namespace quatrain
