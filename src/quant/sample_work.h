// Calibration samples one by one, or some together on a GPU: which threads run them, and where what is kept
// of them lies.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <vector>

#include "base/file.h"
#include "base/thread_pool.h"

namespace quatrain {

/// Calls `body` when those of all smaller samples have returned. Once a sample.
using InOrder = std::function<void(const std::function<void()>& body)>;

class SampleWork {
 public:
  /// One thread, rows in memory.
  SampleWork() = default;
  /// The threads of `pool`, a sample a thread (libtorch then should use one thread itself, see
  /// math_threads.h); large rows in files of `scratch` that have no name, so that nothing is left of them
  /// when the process dies. On a GPU, rows lie in its memory.
  SampleWork(ThreadPool& pool, fs::path scratch, torch::Device device = torch::kCPU)
      : pool_(&pool), scratch_(std::move(scratch)), device_(device) {}

  /// body(sample, in_order) for every sample in [0, samples). Sums over samples are taken inside in_order:
  /// they then do not depend on the number of threads. The first exception ends the loop. On a GPU the
  /// calling thread runs all of them: its operations wait for one another there anyway.
  void each(size_t samples, const std::function<void(size_t sample, const InOrder& in_order)>& body) const;

  torch::Device device() const { return device_; }

  /// Room for rows of `width` values for the tokens of every sample in `like`, FP32, in one allocation (what
  /// lives as long as a layer must not lie between the temporaries of its products); in a mapped file where
  /// it is larger than kResident.
  std::vector<torch::Tensor> rows(const std::vector<torch::Tensor>& like, int64_t width) const;
  static constexpr uint64_t kResident = uint64_t{32} << 20;

  /// The rows of a sample are not needed for a while: pages of a mapped file leave the process. Rows in
  /// memory stay.
  static void rest(const torch::Tensor& rows);

 private:
  ThreadPool* pool_ = nullptr;
  fs::path scratch_;
  torch::Device device_ = torch::kCPU;
};

/// Token sequences that meet a layer together: all of `sequence` tokens, as DecoderLayer::sequence names
/// them.
struct SampleBatches {
  std::vector<std::vector<int32_t>> ids;  // of each batch, one sequence behind the other
  int64_t sequence = 0;                   // 0: a batch is one sample
};

/// Batches of at most `most` samples in their order; of one each where their lengths differ. A GPU spends
/// more time on being told what to do than on one sample of a small model.
SampleBatches batched(const std::vector<std::vector<int32_t>>& samples, int64_t most);

}  // namespace quatrain
