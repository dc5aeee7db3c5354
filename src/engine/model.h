// A model's weights as the engine runs them: loaded, checked, repacked.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "engine/engine.h"
#include "engine/linear.h"
#include "engine/transform.h"
#include "engine/weight_source.h"
#include "model/config.h"
#include "ops/dense_matmul.h"
#include "ops/embedding.h"
#include "ops/kv_cache.h"

namespace quatrain {

/// down(activation(gate x) * up x): a dense layer's MLP, or one expert.
struct Mlp {
  LinearGroup gate_up;
  LinearGroup down;
};

struct Layer {
  std::vector<float> input_norm, mlp_norm;              // before attention and before the MLP
  std::vector<float> attention_out_norm, mlp_out_norm;  // after them; empty without sandwich norms
  std::vector<float> query_norm, key_norm;              // per head; empty without qk norm
  LinearGroup qkv, output;
  std::shared_ptr<const ops::DenseMatrix> router;  // MoE layers
  std::vector<Mlp> experts;                        // one in a dense layer
  ops::KvLayout kv;
  ops::KvLayout exact_kv;  // of unquantised pages beside it; no bytes where kv is unquantised itself
  std::unique_ptr<OnlineTransform> key_transform;  // of each head of q and k after RoPE
  int64_t window = 0;
  bool local_rope = false;
};

struct Model {
  ModelConfig config;
  std::optional<ops::Embedding> embedding;
  std::vector<Layer> layers;
  std::vector<float> final_norm;
  LinearGroup head;
  size_t page_bytes = 0;        // of a KV page over all layers
  size_t exact_page_bytes = 0;  // of an unquantised one

  /// What one token costs (of the experts, those that run).
  EngineCosts costs() const;
};

/// Loads everything. What could fail at the first token fails here, by name.
Model load_model(const WeightSource& source, ThreadPool& pool);

}  // namespace quatrain
