// A 16-bit model, whatever format it came in: its config, its tensors under canonical names, its tokenizer
// files.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/stored_codes.h"
#include "checkpoint/tensor_source.h"
#include "model/config.h"
#include "text/tokenizer.h"

namespace quatrain {

/// Weights under canonical (Hugging Face Llama) names: model.embed_tokens.weight,
/// model.layers.N.self_attn.q_proj.weight, model.layers.N.mlp.experts.E.gate_proj.weight, model.norm.weight,
/// lm_head.weight. Fused matrices (Phi3 qkv_proj and gate_up_proj, fused MoE tensors) appear as their parts,
/// GGUF's permuted q/k rows in model order. Opening lists every missing, unexpected and misshapen tensor in
/// one error.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  const fs::path& path() const { return path_; }
  const ModelConfig& config() const { return config_; }

  /// Where the tokenizer lies: the directory, or the GGUF file itself.
  const fs::path& tokenizer_path() const { return path_; }

  virtual bool has(const std::string& name) const = 0;
  /// Shape of a canonical tensor. Throws when absent.
  virtual std::vector<int64_t> shape(const std::string& name) const = 0;
  /// The whole tensor as FP32 (exact for F32, F16, BF16 and every GGUF type). NaN or infinity is an error
  /// that names tensor, row and column.
  virtual std::vector<float> read(const std::string& name) const = 0;
  /// As read(), for rows [begin, end) of a matrix.
  virtual std::vector<float> read_rows(const std::string& name, int64_t begin, int64_t end) const = 0;
  /// Rows [begin, end) of a matrix as the integers that the file holds, where they and their scales say all of
  /// it (symmetric GPTQ, AWQ, compressed-tensors; Q4_0, Q8_0); nullopt elsewhere.
  virtual std::optional<StoredCodes> read_codes(const std::string& /*name*/, int64_t /*begin*/,
                                                int64_t /*end*/) const {
    return std::nullopt;
  }
  /// How the file says that a linear's input is quantised; 16 bits where it says nothing.
  virtual ActivationPolicy activation(const std::string& /*linear*/) const { return {}; }
  /// The type that the file holds it in: "F32", "BF16", "Q4_1", ...
  virtual std::string stored_type(const std::string& name) const = 0;
  /// Its bytes in the file; of a fused tensor, its share.
  virtual uint64_t stored_bytes(const std::string& name) const = 0;
  /// SHA-256 over names, types and bytes of all source tensors and the config: the identity in journals and
  /// reports.
  virtual std::string fingerprint() const = 0;

 protected:
  fs::path path_;
  ModelConfig config_;
};

/// MODEL of the command line: a hub directory, a .gguf file, or a llama2.c .bin file. Weights packed by GPTQ,
/// AWQ or compressed-tensors are read as FP32, like GGUF's quantised types. An artifact is refused here (use
/// ArtifactReader).
std::unique_ptr<Checkpoint> open_checkpoint(const fs::path& path);

/// The tokenizer that belongs to MODEL (hub directory, GGUF, or the tokenizer beside a llama2.c file).
/// Throws when there is none.
std::unique_ptr<Tokenizer> load_model_tokenizer(const fs::path& model);

}  // namespace quatrain
