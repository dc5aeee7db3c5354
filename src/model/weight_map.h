// Canonical tensor names over the tensors of a file, whatever the file calls them and however it stacks them.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tensor_source.h"
#include "model/config.h"

namespace quatrain {

/// Where a canonical tensor lies: `shape` rows of `tensor` from `first_row` on (elements, where it has one
/// dimension).
struct WeightSlice {
  const TensorInfo* tensor = nullptr;
  std::vector<int64_t> shape;
  int64_t first_row = 0;
  /// Not 0: row 2i + p of each head of so many rows is the model's row i + p * head_dim / 2. Meta's weights,
  /// and so GGUF's llama and llama2.c, keep the two rows that RoPE turns together side by side.
  int64_t paired_head_dim = 0;
};

/// The canonical tensors that a tensor of the file holds, stacked along its rows in this order. An empty
/// list: known and not needed. nullopt: unknown.
using WeightNamer = std::function<std::optional<std::vector<std::string>>(std::string_view)>;

/// Names of hub safetensors: plain, Phi3's fused qkv_proj and gate_up_proj, Mixtral's w1/w2/w3, experts per
/// tensor or stacked, Gemma 3 within its multimodal wrapper, models saved without the "model." prefix.
WeightNamer hub_namer(const TensorSource& source, const ModelConfig& config);
/// Names of GGUF files (blk.N.attn_q.weight, ...).
WeightNamer gguf_namer(const ModelConfig& config);

using WeightMap = std::map<std::string, WeightSlice, std::less<>>;

/// Matches the file's tensors with those that `config` asks for. One error lists everything missing,
/// unexpected, given twice or misshapen. A head beside tied embeddings is dropped when it equals them; when
/// it differs, it is used and config.tied_embeddings cleared. `paired`: see WeightSlice.
WeightMap map_weights(const TensorSource& source, const WeightNamer& namer, bool paired, ModelConfig& config);

}  // namespace quatrain
