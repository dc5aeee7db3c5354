// Second moments of a layer's inputs in the unquantised stream: what closed-form transforms are made from.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <vector>

#include "quant/reference/decoder_layer.h"
#include "quant/sample_work.h"

namespace quatrain {

/// FP64 sums over tokens. Inputs of linears in blocks of the widths asked for; undefined where that is 0.
struct LayerMoments {
  torch::Tensor attention, mlp, down;  // [blocks, n, n]
  torch::Tensor mixed;                 // of o's input, by query head: [heads, d, d]
  torch::Tensor keys, queries;         // after RoPE, queries of a KV head pooled: [kv_heads, d, d]
  torch::Tensor key_sum;               // [kv_heads, d]
  torch::Tensor largest_keys;  // each sequence's key of largest |value|: FP32 [sequences, kv_heads, d]
  torch::Tensor down_largest;  // largest |input| of each channel of down, by expert: FP32 [experts, inner]
  int64_t tokens = 0, down_tokens = 0;  // the latter: inputs of down, one a token and expert
  std::vector<int64_t> expert_tokens;   // that the router sent to each expert; empty in dense layers
};

struct ExactPass {
  LayerMoments moments;
  std::vector<torch::Tensor> middle, output;  // residual stream behind attention and behind the layer
  // Products of o and of down, where a norm stands between them and the stream; empty elsewhere.
  std::vector<torch::Tensor> attention_out, mlp_out;
};

/// Sees the input of the linears at each site, FP32 [tokens, in], sample after sample.
using SiteObserver = std::function<void(Site site, const torch::Tensor& input)>;

/// Runs every sample of `hidden` (FP32 [tokens, hidden]; several sequences where layer.sequence says so)
/// through the unquantised layer. Moments of down's
/// inputs are pooled over experts, each of which adds those of the tokens that reach it.
ExactPass run_exact(const DecoderLayer& layer, const ModelConfig& config,
                    const std::vector<torch::Tensor>& hidden, int64_t input_block, int64_t down_block,
                    const SiteObserver& observe = {}, const SampleWork& work = {});

/// x^T x in every block of n columns: FP64 [blocks, n, n].
torch::Tensor block_moments(const torch::Tensor& x, int64_t n);

}  // namespace quatrain
