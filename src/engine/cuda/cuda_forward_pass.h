// The forward pass on the GPU: tokens of one or several sequences through all layers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/cuda/cuda_model.h"
#include "engine/cuda/cuda_pass_inputs.h"
#include "engine/paged_engine.h"

namespace quatrain {

/// Buffers of the pass over one model, allocated once. Work is queued on the scratch's stream; run() returns
/// before it is done.
class CudaForwardPass {
 public:
  /// `context`: the longest sequence. KV memory is given by set_pages() before the first pass.
  CudaForwardPass(const CudaModel& model, CudaScratch& scratch, int64_t context);
  ~CudaForwardPass();
  CudaForwardPass(const CudaForwardPass&) = delete;
  CudaForwardPass& operator=(const CudaForwardPass&) = delete;

  /// The first byte of the memory that all KV pages lie in, one after the other.
  void set_pages(uint8_t* pages) { pages_ = pages; }

  /// Runs the slices. Passes of one token a sequence run as CUDA graphs from their second time on.
  void run(std::span<const Slice> slices);
  /// Logits [rows.size(), vocabulary] of tokens of the last pass, counted through its slices, into host
  /// memory. Waits, and reports as settle() does.
  void logits(std::span<const int64_t> rows, float* out);
  /// Log-probabilities [rows.size()] of a target behind each of these tokens; the same otherwise.
  void log_probabilities(std::span<const int64_t> rows, std::span<const int32_t> targets, float* out);
  /// Waits for what is queued. NaN or infinity is an Error that names layer, token and channel.
  void settle();

  /// Greedy decoding without the host in between: from one token a slice on, `steps` tokens of each,
  /// [steps][slices]. The sequences must have pages for them. Waits, and reports as settle() does.
  std::vector<int32_t> greedy(std::span<const Slice> slices, int64_t steps);

 private:
  struct Rope {
    ops::DeviceBuffer<float> frequencies, cosine, sine;
    float scale = 1;
    int64_t half = 0;
  };
  struct Graph {
    int64_t uses = 0;
    cudaGraphExec_t exec = nullptr;
  };

  /// Once the last pass no longer reads them; the page table has room for `ahead` tokens more a sequence.
  PassShape stage(std::span<const Slice> slices, int64_t ahead);
  void upload(const PassShape& shape);
  /// All layers; what the last one adds to the hidden state is left in delta_.
  void enqueue(const PassShape& shape);
  void copy_checks();
  /// Instantiates what `queue` queues.
  cudaGraphExec_t capture(const std::function<void()>& queue);
  void attend(const CudaLayer& layer, int64_t index, const PassShape& shape);
  void run_mlp(const CudaLayer& layer, int64_t index, const PassShape& shape);
  void run_experts(const CudaLayer& layer, int64_t index, const PassShape& shape);
  void run_expert(const CudaMlp& mlp, const LinearInput& input, int64_t rows, float* out,
                  unsigned long long* bad);
  float* hidden() { return hidden_[hidden_now_].data(); }
  /// The hidden state to be normed, with what the layer before left in delta_ where `added`; from then on the
  /// sum is the hidden state.
  LinearInput normed_input(bool added, unsigned long long* bad);
  /// Runs the head over the rows, at most logit_rows_ at a time: take(first, count) queues what becomes of
  /// the logits [count, vocabulary] of rows[first..].
  void run_head(std::span<const int64_t> rows, const std::function<void(int64_t, int64_t)>& take);
  unsigned long long* site(int64_t layer, int which) { return bad_.data() + layer * kSites + which; }
  [[noreturn]] void report(size_t site, unsigned long long value) const;

  // Where values are checked, per layer; the last one more: the final norm.
  enum Site { kInputNorm, kKv, kOutputInput, kAttentionOut, kMlpNorm, kDownInput, kMlpOut, kSites };

  const CudaModel& model_;
  const ModelConfig& config_;
  CudaScratch& scratch_;
  cudaStream_t stream_;
  int64_t max_rows_;
  bool graphs_;  // a router needs the host in between
  uint8_t* pages_ = nullptr;

  Rope rope_, local_rope_;
  ops::KvWorkspace kv_workspace_;
  // The hidden state before and after an addition take turns: a product that norms its input reads the one in
  // every CTA while it writes the other.
  ops::DeviceBuffer<float> hidden_[2];
  int hidden_now_ = 0;
  ops::DeviceBuffer<float> delta_, qkv_, attended_, gate_up_;
  ops::DeviceBuffer<float> normed_, router_logits_, expert_in_, expert_out_, expert_weights_;
  ops::DeviceBuffer<float> head_in_, logits_, scores_;
  ops::DeviceBuffer<int32_t> targets_;
  ops::DeviceBuffer<int32_t> indices_;  // rows to gather or to scatter
  ops::DeviceBuffer<unsigned long long> bad_;
  PassInputs inputs_;
  PinnedBuffer pinned_bad_, pinned_indices_;
  ops::ArgmaxWorkspace argmax_;
  int64_t logit_rows_;

  bool pending_ = false;
  std::map<PassShape, Graph> pass_graphs_;
};

}  // namespace quatrain
