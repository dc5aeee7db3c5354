// A quantised model whose weight scales can be trained: one layer's graph lives at a time.
#pragma once

#include <torch/torch.h>

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "quant/reference/decoder_layer.h"

namespace quatrain {

/// The fake-quantised forward of an artifact with W = c / 16 * s (1 + d): codes c and scales s [out, groups]
/// as the artifact has them, d trainable, 0 at first. Rounding of activations and of the KV cache passes
/// gradients straight through. Construct and use it outside of inference mode.
class Student {
 public:
  explicit Student(const fs::path& artifact);
  Student(const Student&) = delete;

  const ModelConfig& config() const { return source_->config(); }

  /// d of every linear, FP32 [out, groups], leaves that require gradients.
  std::vector<torch::Tensor> parameters() const;
  /// s (1 + d) by linear, as the artifact stores it: groups in FP16, rows in FP32, row-major.
  std::map<std::string, std::vector<float>> scales() const;

  /// Mean over tokens of KL(teacher || student). `teacher`: hidden states [tokens, hidden] behind the last
  /// layer of `teacher_head`'s model, its final norm applied. With `learn`, adds the gradients of every d.
  double divergence(const std::vector<int32_t>& ids, const torch::Tensor& teacher,
                    const ReferenceLinear& teacher_head, bool learn);

 private:
  struct Scaled {
    std::string name;
    ReferenceLinear* linear;
    torch::Tensor codes;         // int8 [out, in]
    torch::Tensor scale, delta;  // FP32 [out, groups]
    int64_t group;               // columns of a scale
  };

  torch::Tensor run_layer(size_t index, const torch::Tensor& hidden);
  torch::Tensor head_gradient(const torch::Tensor& normed, const torch::Tensor& teacher,
                              const ReferenceLinear& teacher_head, double& divergence) const;

  std::unique_ptr<WeightSource> source_;
  torch::Tensor embedding_, norm_;
  ReferenceLinear head_;
  std::deque<DecoderLayer>
      layers_;  // their quantised weights are made when a layer runs; Scaled points into it
  std::vector<std::vector<Scaled>> scaled_;
};

}  // namespace quatrain
