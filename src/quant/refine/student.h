// A quantised model whose weight scales and norms can be trained: one layer's graph of each sample lives at
// a time.
#pragma once

#include <torch/torch.h>

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/thread_pool.h"
#include "quant/reference/decoder_layer.h"
#include "quant/refine/scaled_linear.h"

namespace quatrain {

/// Texts of equal length behind one another, and what their teacher predicts from: hidden states [tokens,
/// hidden] behind the teacher's final norm.
struct Lesson {
  std::vector<int32_t> ids;
  torch::Tensor teacher;
};

/// The fake-quantised forward of an artifact with W = c / 16 * s (1 + d), codes c and scales s [out, groups]
/// as the artifact has them, and norms x / rms(x) * g (1 + d): every d is trainable, 0 at first. Rounding of
/// activations and of the KV cache passes gradients straight through. Construct and use it outside of
/// inference mode.
class Student {
 public:
  explicit Student(const fs::path& artifact, torch::ScalarType products = fastest_product_type(torch::kCPU),
                   torch::Device device = torch::kCPU);
  Student(const Student&) = delete;

  const ModelConfig& config() const { return source_->config(); }
  /// Tokens of each text of a lesson; 0: a lesson is one text.
  void set_sequence(int64_t tokens) {
    for (DecoderLayer& layer : layers_) layer.sequence = tokens;
  }

  /// d of every linear, FP32 [out, groups], and of every norm, FP32 [width].
  struct Parameters {
    std::vector<torch::Tensor> scales, norms;
  };
  Parameters parameters() const;
  /// s (1 + d) by linear, as the artifact stores it: groups in FP16, rows in FP32, row-major.
  std::map<std::string, std::vector<float>> scales() const;
  /// The weights of the norms by tensor: g (1 + d), less what the model adds to them.
  std::map<std::string, std::vector<float>> norms() const;

  /// Of each lesson, the mean over its tokens of KL(teacher || student); a lesson a thread of `pool`. Sets
  /// `gradients`, unless it is null, to those of the mean over lessons; they do not depend on the number of
  /// threads.
  std::vector<double> divergence(std::span<const Lesson> lessons, const ReferenceLinear& teacher_head,
                                 ThreadPool& pool, Parameters* gradients = nullptr);

 private:
  struct Scaled {
    std::string name;
    ReferenceLinear* linear;
    ScaledWeight weight;
    torch::Tensor scale, delta;  // FP32 [out, groups]
    torch::Tensor factors = {};  // scale / 16 (1 + delta) and W of it, while its layer runs
    torch::Tensor dense = {};
  };

  struct Norm {
    std::string name;       // of its tensor
    torch::Tensor* weight;  // what the forward reads
    torch::Tensor gain, delta;
  };
  // One layer's parts, or those that stand alone.
  struct Trained {
    std::vector<Scaled> linears;
    std::vector<Norm> norms;
  };

  Norm trained_norm(const std::string& name, torch::Tensor& weight) const;
  torch::Tensor weight_of(const Norm& norm) const;
  void load(size_t layer);
  void unload(size_t layer);
  torch::Tensor head_gradient(const torch::Tensor& input, const torch::Tensor& teacher,
                              const ReferenceLinear& teacher_head, double& divergence) const;

  std::unique_ptr<WeightSource> source_;
  torch::Tensor embedding_, norm_;
  ReferenceLinear head_;
  std::deque<DecoderLayer> layers_;  // without their quantised weights; what is trained points into it
  std::vector<Trained> trained_;     // a layer each
  Norm last_norm_;
};

}  // namespace quatrain
