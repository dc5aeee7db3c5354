// The linears of a layer by the input that they share.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "quant/reference/decoder_layer.h"

namespace quatrain {

struct SiteLinears {
  Site site = Site::Qkv;
  int64_t expert = 0;
  std::vector<ReferenceLinear*> linears;
};

/// In the order they run: q, k, v; o; then gate, up and down of every expert (of the one MLP in dense
/// layers). The pointers are into `layer`.
std::vector<SiteLinears> sites_of(DecoderLayer& layer);

/// All linears of `layer` that read the input at `site`, those of every expert.
std::vector<ReferenceLinear*> linears_at(DecoderLayer& layer, Site site);

/// Their matrices, one below the other.
torch::Tensor weights_of(const std::vector<ReferenceLinear*>& linears);

}  // namespace quatrain
