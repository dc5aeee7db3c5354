// Where the reference forward takes its weights from: a 16-bit checkpoint, or an artifact that it unpacks
// with its own code.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>

#include "checkpoint/artifact.h"
#include "model/checkpoint.h"
#include "model/config.h"

namespace quatrain {

/// y = fake_quantize(x A) W^T + b.
struct ReferenceLinear {
  std::string name;
  torch::Tensor weight;  // FP32 [out, in]
  torch::Tensor bias;    // FP32 [out] or undefined
  ActivationPolicy activation;
  Transform input_transform = {};   // where the blocks below come from
  torch::Tensor input_blocks = {};  // A, FP32 [blocks, n, n] (transforms/block.h); undefined: none
  std::function<torch::Tensor(const torch::Tensor&)> multiply = {};  // x W^T in place of `weight`

  bool same_input(const ReferenceLinear& other) const {
    return activation == other.activation && input_transform == other.input_transform;
  }
  /// The input as the integer product would see it. x: FP32 [tokens, in].
  torch::Tensor quantize_input(const torch::Tensor& x) const;
  /// The product with an input that quantize_input() returned.
  torch::Tensor product(const torch::Tensor& quantized) const;
};

/// Of each KV head: k <- (k - mean) A and q <- q A^-T after RoPE. Undefined: none.
struct KeyTransform {
  torch::Tensor key, query;  // FP32 [kv_heads, head_dim, head_dim]
  torch::Tensor mean;        // FP32 [kv_heads, head_dim]
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  const ModelConfig& config() const { return config_; }

  /// A tensor that is not a linear's weight (norms, routers), by full name, as FP32.
  virtual torch::Tensor plain(const std::string& name) const = 0;
  virtual ReferenceLinear linear(const std::string& name) const = 0;
  /// FP32 [vocabulary, hidden].
  virtual torch::Tensor embedding() const = 0;
  /// lm_head, the embedding's matrix where the two are tied.
  virtual ReferenceLinear head() const = 0;
  virtual KvPolicy kv(int64_t layer) const = 0;
  virtual KeyTransform key_transform(int64_t) const { return {}; }

 protected:
  ModelConfig config_;
};

/// MODEL of the command line: an artifact directory, or anything that open_checkpoint() reads. Tensors come
/// on `device` (device.h).
std::unique_ptr<WeightSource> open_weight_source(const fs::path& model, torch::Device device = torch::kCPU);
std::unique_ptr<WeightSource> checkpoint_weight_source(std::shared_ptr<const Checkpoint> checkpoint,
                                                       torch::Device device = torch::kCPU);

/// Of a key transform that is constructed: the same orthogonal matrix for queries and keys of every head.
KeyTransform constructed_key_transform(const Transform& transform, const ModelConfig& config);

/// scale c / 16 of a quantised linear, FP32 [out, in], from the artifact's raw bytes.
torch::Tensor unpack_planes(const TensorSource& tensors, const std::string& linear,
                            const LinearPolicy& policy, int64_t columns);

}  // namespace quatrain
