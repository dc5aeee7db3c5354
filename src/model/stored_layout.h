// The tensors that a file of a given format holds, in order: the inverse of the namers in weight_map.h.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"

namespace quatrain {

/// One tensor of a file: canonical tensors stacked along their rows.
struct StoredTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<std::string> parts;
  bool norm = false;    // a gain of RMSNorm: the offset may be added to it
  bool paired = false;  // rows that RoPE turns together lie side by side (GGUF's llama; see WeightSlice)
  bool plain = false;   // never quantised: vectors and routers

  int64_t elements() const;
};

/// As transformers writes it: Phi3 fused, Mixtral as block_sparse_moe.
std::vector<StoredTensor> hub_layout(const ModelConfig& config);
/// As llama.cpp's converter writes it.
std::vector<StoredTensor> gguf_layout(const ModelConfig& config);

}  // namespace quatrain
