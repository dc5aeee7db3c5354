// llama2.c's version 0 checkpoints (the "legacy" export): seven int32, then FP32 tensors in a fixed order.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/file.h"
#include "checkpoint/tensor_table.h"

namespace quatrain {

/// The file's header; the head's tying is the sign of its vocabulary field.
struct Llama2cShape {
  int64_t hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0, vocabulary = 0, positions = 0;
  bool tied = false;

  int64_t head_dim() const { return hidden / heads; }
};

/// Tensors under Hugging Face Llama names (model.embed_tokens.weight, model.layers.N.self_attn.q_proj.weight,
/// ..., lm_head.weight where the head is its own). RoPE is theta 10000, norms have epsilon 1e-5, there are no
/// biases. The rows of q_proj and k_proj are as in the file: see interleaved_rope().
class Llama2cFile : public TensorTable {
 public:
  /// Maps the file; its size must be exactly what its header says.
  explicit Llama2cFile(const fs::path& path);
  /// The same over bytes that the caller keeps; `name` stands for the path in messages.
  Llama2cFile(std::span<const std::byte> bytes, const fs::path& name);

  const Llama2cShape& shape() const { return shape_; }
  /// Rows 2i and 2i + 1 of a q or k head form the pair that turns by frequency i. Hugging Face's order pairs
  /// rows i and i + head_dim / 2, so its row i is this file's 2i, and its row i + head_dim / 2 this file's 2i
  /// + 1.
  static constexpr bool interleaved_rope() { return true; }

 private:
  void parse(std::span<const std::byte> bytes);

  std::optional<MappedFile> file_;
  Llama2cShape shape_;
};

}  // namespace quatrain
