// A model's weights in GPU memory.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/cuda/cuda_linear.h"
#include "engine/weight_source.h"
#include "model/config.h"
#include "ops/cuda/kv_pages.h"
#include "ops/cuda/row_ops.h"
#include "ops/cuda/row_transforms.h"

namespace quatrain {

struct CudaMlp {
  CudaLinear gate_up, down;
};

struct CudaLayer {
  ops::DeviceBuffer<float> mlp_norm;                          // MoE layers: before the router
  ops::DeviceBuffer<float> attention_out_norm, mlp_out_norm;  // empty without sandwich norms
  ops::DeviceBuffer<float> query_norm, key_norm;              // empty without qk norm
  CudaLinear qkv, output;
  std::optional<ops::DenseDeviceMatrix> router;
  std::vector<CudaMlp> experts;  // one in a dense layer
  ops::DeviceKvLayout kv;
  std::optional<ops::DeviceHadamard> key_hadamard;  // of each head of q and k after RoPE
  ops::DeviceBuffer<float> key_signs;               // where rotate_heads takes it along: D / sqrt(head_dim)
  std::optional<ops::DeviceBlockTransform> key_matrices;
  int64_t window = 0;
};

struct CudaModel {
  ModelConfig config;
  ops::DeviceEmbedding embedding;
  std::optional<ops::DenseDeviceMatrix> embedding_matrix;  // where the head does not have it
  std::vector<CudaLayer> layers;
  CudaLinear head;         // the final norm included
  int64_t page_bytes = 0;  // of a KV page over all layers

  /// Bytes of weights that decoding one token reads (of the experts, those that run).
  int64_t bytes_per_token() const;
  int64_t kv_bytes_per_token() const { return page_bytes / ops::kKvPageTokens; }
  /// Linears that no integer kernel takes, which run in FP32.
  std::vector<std::string> slow_linears() const;
};

/// Loads everything. What could fail at the first token fails here, by name.
CudaModel load_cuda_model(const WeightSource& source, CudaScratch& scratch);

}  // namespace quatrain
