// What the unquantised stream leaves at the inputs of a layer's linears, for smoothing and for choosing
// blocks.
#pragma once

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <vector>

#include "quant/reference/decoder_layer.h"

namespace quatrain {

struct SiteInput {
  torch::Tensor largest;            // |x| of each channel over all tokens: FP32 [in]
  torch::Tensor squares;            // sum of x^2: FP64 [in]; undefined where `moments` are kept
  torch::Tensor moments;            // x^T x: FP64 [in, in]; undefined where only `squares` are kept
  std::vector<torch::Tensor> rows;  // some tokens of every sample: FP32 [n, in] each
  int64_t tokens = 0;
};

/// The inputs of one dense layer by site. Its transforms change what the linears see: divide(), turn() and
/// permute() change the statistics likewise.
class LayerInputs {
 public:
  /// `mixed` of a site (index: Site): its channels will be turned into mixtures, so that x^T x is needed.
  /// `rows`: tokens to keep of every sample, at random places drawn from `seed`.
  LayerInputs(std::array<bool, 4> mixed, int64_t rows, uint64_t seed)
      : mixed_(mixed), rows_(rows), seed_(seed) {}

  void add(Site site, const torch::Tensor& x);
  SiteInput& at(Site site) { return inputs_[static_cast<size_t>(site)]; }

  /// x / scale, scale FP32 [in].
  void divide(Site site, const torch::Tensor& scale);
  /// x A in blocks (transforms/block.h). Of a site that was announced as mixed. `largest` is lost.
  void turn(Site site, const torch::Tensor& blocks);
  /// Channels in `order`, int64 [in].
  void permute(Site site, const torch::Tensor& order);

  /// Mean over tokens of x^2, FP64 [in].
  torch::Tensor mean_squares(Site site) const;
  /// h = (2 / N) sum over tokens of x^2, FP64 [in]: the diagonal of MosaicQuant's Hessian.
  torch::Tensor sensitivity(Site site) const;

 private:
  const SiteInput& of(Site site) const { return inputs_[static_cast<size_t>(site)]; }

  std::array<bool, 4> mixed_;
  int64_t rows_;
  uint64_t seed_;
  std::array<SiteInput, 4> inputs_;
};

}  // namespace quatrain
