// What engines share whatever computes: sequences over a page pool, batches cut into passes, logits in order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "engine/engine.h"
#include "engine/kv_pool.h"

namespace quatrain {

class PagedEngine : public Engine {
 public:
  int64_t context() const override { return context_; }

  int64_t new_sequence() override { return kv_.add_sequence(); }
  void free_sequence(int64_t sequence) override { kv_.remove_sequence(sequence); }
  int64_t length(int64_t sequence) const override { return kv_.sequence(sequence).length; }
  void truncate(int64_t sequence, int64_t length) override { kv_.truncate(kv_.sequence(sequence), length); }
  int64_t reusable(int64_t sequence, int64_t length) const override {
    return kv_.cuttable(kv_.sequence(sequence), length);
  }
  int64_t pages_in_use() const override { return kv_.pages_in_use(); }
  int64_t pages_in_all() const override { return kv_.pages_in_all(); }

  void forward(std::span<const BatchItem> batch, const LogitsSink& sink) override;

 protected:
  /// `chunk`: most tokens of a pass.
  PagedEngine(const ModelConfig& config, std::string_view where, KvPool kv, int64_t context, int64_t chunk);

  /// Runs the slices through all layers.
  virtual void run_pass(std::span<const Slice> slices) = 0;
  /// The logits [rows.size(), vocabulary] of rows of the last pass (tokens of its slices, counted through).
  virtual void logits(std::span<const int64_t> rows, float* out) = 0;
  /// Log-probabilities [rows.size()] of a target behind each of these rows.
  virtual void log_probabilities(std::span<const int64_t> rows, std::span<const int32_t> targets, float* out);
  /// After the last pass of a batch: what is found to be wrong only now is an Error.
  virtual void finish() {}

  KvPool& kv() { return kv_; }

 private:
  struct Origin;
  void check(std::span<const BatchItem> batch) const;
  void run_passes(std::span<const BatchItem> batch, const std::vector<KvSequence*>& sequences,
                  std::span<const int64_t> before, const LogitsSink& sink);
  size_t rows_of_logits() const;
  void emit(std::span<const BatchItem> batch, std::span<const Slice> slices, std::span<const Origin> origins,
            const LogitsSink& sink);

  KvPool kv_;
  int64_t context_, chunk_;
  AlignedBuffer<float> logits_;
  std::vector<float> scores_;
};

}  // namespace quatrain
