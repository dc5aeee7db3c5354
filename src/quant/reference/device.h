// Where the reference forward and the quantiser compute: the CPU, or a GPU that libtorch was built for.
// Layers are moved there as they are loaded; what follows computes where its tensors lie.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "quant/reference/weight_source.h"

namespace quatrain {

/// "cpu", "cuda" (its first GPU) or "cuda:N". An Error where libtorch has no such device.
torch::Device torch_device(const std::string& name);

/// `source` with every tensor on `device`.
std::unique_ptr<WeightSource> on_device(std::unique_ptr<WeightSource> source, torch::Device device);

/// The same transform with its tensors on `device`.
KeyTransform on_device(const KeyTransform& transform, torch::Device device);

/// The rows of `embedding` for these tokens, where it lies.
torch::Tensor embedded(const torch::Tensor& embedding, const std::vector<int32_t>& ids);

/// A contiguous copy that plain pointers may read; `x` itself where it is one.
inline torch::Tensor in_memory(const torch::Tensor& x) {
  return x.cpu().contiguous();
}

}  // namespace quatrain
