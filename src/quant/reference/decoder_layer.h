// One transformer layer of the reference forward, with the places where calibration looks in.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "quant/reference.h"
#include "quant/reference/weight_source.h"

namespace quatrain {

/// Linears that share an input.
enum class Site { Qkv, Output, GateUp, Down };

/// What calibration may watch; empty functions are skipped.
struct LayerHooks {
  /// The input of the linears at `site` (of one expert; 0 in dense layers) before its quantiser,
  /// FP32 [tokens, in]. Called before the product.
  std::function<void(Site site, int64_t expert, const torch::Tensor& input)> linear_input;
  /// Queries [tokens, heads, head_dim] and keys [tokens, kv_heads, head_dim] after RoPE, before quantisation.
  std::function<void(const torch::Tensor& queries, const torch::Tensor& keys)> attention_input;
};

/// hidden [tokens, hidden] of one sequence from position 0, or of several of equal length behind one another
/// -> the layer's output, same shape. Linears and norms are public: calibrated stages replace them one by
/// one.
class DecoderLayer {
 public:
  struct Mlp {
    ReferenceLinear gate, up, down;
  };

  DecoderLayer(const WeightSource& source, int64_t index);

  torch::Tensor forward(const torch::Tensor& hidden, const LayerHooks& hooks = {}) const;
  int64_t index() const { return index_; }

  ReferenceLinear q, k, v, o;
  std::vector<Mlp> mlps;  // one, or one an expert
  torch::Tensor router;   // [experts, hidden]; undefined in dense layers
  torch::Tensor input_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm;  // the last two: sandwich only
  torch::Tensor q_norm, k_norm;
  KvPolicy kv;
  KeyTransform key_transform;
  int64_t sequence = 0;  // tokens of each sequence; 0: all are one

  /// How many sequences `tokens` are.
  int64_t sequences_in(int64_t tokens) const { return sequence == 0 ? 1 : tokens / sequence; }

  /// The experts of every token, int64 [tokens, k], and how much each counts, FP32 [tokens, k].
  struct Routing {
    torch::Tensor experts, shares;
    /// The tokens of one expert, int64 [n], ascending, and their shares, FP32 [n, 1].
    std::pair<torch::Tensor, torch::Tensor> of(int64_t expert) const;
  };
  /// x: mlp_input(), not quantised.
  Routing route(const torch::Tensor& x) const;

  /// The input of o from the products of q, k and v, each [tokens, its width].
  torch::Tensor mix(const torch::Tensor& q_out, const torch::Tensor& k_out, const torch::Tensor& v_out,
                    const LayerHooks& hooks = {}) const;
  /// The input of down from the products of gate and up.
  torch::Tensor gated(const torch::Tensor& gate_out, const torch::Tensor& up_out) const;
  /// The inputs of q, k, v and of the MLP (before their quantisers) from the residual stream.
  torch::Tensor attention_input(const torch::Tensor& hidden) const;
  torch::Tensor mlp_input(const torch::Tensor& middle) const;
  /// What the products of o and of down add to the residual stream: the norm behind them where there is one.
  torch::Tensor attention_update(const torch::Tensor& o_out) const;
  torch::Tensor mlp_update(const torch::Tensor& down_out) const;

 private:
  torch::Tensor attention(const torch::Tensor& x, const LayerHooks& hooks) const;
  torch::Tensor attend(const torch::Tensor& queries, const torch::Tensor& keys,
                       const torch::Tensor& values) const;
  torch::Tensor mlp(const Mlp& mlp, int64_t expert, const torch::Tensor& x, const LayerHooks& hooks) const;
  torch::Tensor moe(const torch::Tensor& x, const LayerHooks& hooks) const;
  torch::Tensor rotate(const torch::Tensor& x) const;

  const ModelConfig& config_;
  int64_t index_;
};

/// x / rms(x) * (weight + offset) over the last dimension.
torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, const ModelConfig& config);

/// The whole model over any source of weights; `where` begins error texts.
std::unique_ptr<ReferenceModel> make_reference(std::unique_ptr<WeightSource> source, std::string where,
                                               int threads = 0);

}  // namespace quatrain
