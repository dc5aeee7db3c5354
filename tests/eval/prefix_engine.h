// An engine whose logits depend on every token of a sequence and on their order, and nothing else: what a
// test compares batching and prefix reuse with.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "engine/engine.h"

namespace quatrain {

class PrefixEngine : public Engine {
 public:
  explicit PrefixEngine(int64_t vocabulary = 300, int64_t context = 4096) : context_(context) {
    config_.vocabulary = vocabulary;
  }

  /// The logits behind the last of `tokens`.
  static std::vector<float> logits_after(std::span<const int32_t> tokens, int64_t vocabulary) {
    uint64_t state = 1;
    for (const int32_t token : tokens) state = SplitMix64(state * 31 + static_cast<uint64_t>(token)).next();
    SplitMix64 random(state);
    std::vector<float> logits;
    for (int64_t i = 0; i < vocabulary; ++i) logits.push_back(static_cast<float>(random.below(1000)) * 0.01f);
    return logits;
  }

  const ModelConfig& config() const override { return config_; }
  int64_t context() const override { return context_; }
  int threads() const override { return 1; }
  int64_t weight_bytes_per_token() const override { return 0; }
  int64_t new_sequence() override {
    sequences[next_];
    return next_++;
  }
  void free_sequence(int64_t id) override { sequences.erase(id); }
  int64_t length(int64_t id) const override { return std::ssize(sequences.at(id)); }
  void truncate(int64_t id, int64_t length) override { sequences.at(id).resize(static_cast<size_t>(length)); }
  int64_t pages_in_use() const override { return 0; }
  int64_t pages_in_all() const override { return pages; }
  void forward(std::span<const BatchItem> batch, const LogitsSink& sink) override {
    ++passes;
    std::map<int64_t, int> seen;
    for (size_t i = 0; i < batch.size(); ++i) {
      std::vector<int32_t>& held = sequences.at(batch[i].sequence);
      require(++seen[batch[i].sequence] == 1, "a sequence stands twice in one batch");
      for (size_t t = 0; t < batch[i].tokens.size(); ++t) {
        held.push_back(batch[i].tokens[t]);
        ++fed;
        require(std::ssize(held) <= context_, "past the context");
        const bool last = t + 1 == batch[i].tokens.size();
        if (batch[i].logits == BatchItem::Logits::None ||
            (batch[i].logits == BatchItem::Logits::Last && !last))
          continue;
        sink(static_cast<int64_t>(i), static_cast<int64_t>(t), logits_after(held, config_.vocabulary));
      }
    }
  }

  std::map<int64_t, std::vector<int32_t>> sequences;
  int64_t pages = 1 << 20;
  int64_t fed = 0, passes = 0;

 private:
  ModelConfig config_;
  int64_t context_;
  int64_t next_ = 1;
};

}  // namespace quatrain
