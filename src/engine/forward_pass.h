// The forward pass: tokens of one or several sequences through all layers, up to the final norm.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "engine/kernel_check.h"
#include "engine/kv_pool.h"
#include "engine/model.h"

namespace quatrain {

/// Buffers of the pass over one model. The tokens of all slices run through the linears together; every
/// operation on a token is independent of the others but for attention, which follows from its position.
class ForwardPass {
 public:
  ForwardPass(const Model& model, ThreadPool& pool);

  /// Which tokens attention reads from unquantised pages, which the slices' sequences then hold.
  void set_exact(ExactTokens exact) { exact_ = exact; }

  /// Runs the slices and returns the normed hidden state [tokens of all slices, hidden], valid until the next
  /// call. NaN or infinity is an Error that names layer, token and channel.
  const float* run(std::span<const Slice> slices);

  /// The head's logits [rows, vocabulary] for `rows` rows of a normed hidden state.
  void logits(const float* hidden, int64_t rows, float* out);

  /// Where the time of all passes since clear() went.
  OperatorClock& clock() { return clock_; }
  KernelCheck& kernel_check() { return check_; }

 private:
  // What a thread needs of its own.
  struct Worker {
    LinearScratch scratch;
    AlignedBuffer<float> gate_up;
  };
  // Tokens that go through the steps between two attentions together.
  struct Piece {
    int64_t first, count;  // rows
    Worker& worker;
  };
  /// Calls steps(piece) for all rows: pieces on one thread each where there are enough of them, else as
  /// for_whole.
  template <typename Steps>
  void for_pieces(const Steps& steps);
  /// Calls steps(piece) once; the loops within are shared by all threads.
  template <typename Steps>
  void for_whole(const Steps& steps);
  void take_time();  // of the workers' clocks

  void embed(const Piece& piece);
  void compute_rope();
  /// normed -> qkv, the heads normed, rotated and transformed.
  void project(const Layer& layer, int64_t index, const Piece& piece);
  void rotate_heads(const Layer& layer, const Piece& piece);
  /// qkv -> attended, of all rows.
  void attend(const Layer& layer, int64_t index);
  void append_keys_and_values(const Layer& layer, int64_t index);
  /// attended -> delta.
  void run_output(const Layer& layer, int64_t index, const Piece& piece);
  /// normed -> delta.
  void run_mlp(const Layer& layer, int64_t index, const Piece& piece);
  void run_experts(const Layer& layer, int64_t index, Worker& worker);
  void run_expert(const Mlp& mlp, const float* x, int64_t first, int64_t tokens, Worker& worker, float* out);
  /// hidden += delta (normed by `sandwich` first, where there is one), then normed = RMSNorm(hidden).
  void add_and_norm(bool add, const std::vector<float>& sandwich, const std::vector<float>& norm,
                    std::string_view where, const Piece& piece);
  [[noreturn]] void fail_not_finite(std::string_view where, int64_t row, const float* values,
                                    int64_t width) const;

  const Model& model_;
  const ModelConfig& config_;
  ThreadPool& pool_;
  ExactTokens exact_;

  // Of each rope kind: frequencies, and cos and sin of every token of the pass.
  struct Rope {
    std::vector<float> frequencies;
    float scale = 1;
    AlignedBuffer<float> cosine, sine;
  };
  Rope rope_, local_rope_;
  bool has_local_rope_ = false;

  std::span<const Slice> slices_;
  std::vector<int64_t> first_row_;  // of each slice
  std::vector<int64_t> position_;   // of each row
  int64_t rows_ = 0;

  AlignedBuffer<float> hidden_, normed_, delta_, qkv_, attended_;
  AlignedBuffer<float> router_logits_, expert_in_, expert_out_;
  std::vector<Worker> workers_;        // one a thread
  std::vector<int64_t> piece_starts_;  // and the end
  OperatorClock clock_;
  KernelCheck check_;
};

}  // namespace quatrain
