// An engine without a model: its logits follow from every token of the sequence, so that a wrong cache, a
// lost token or a mixed-up neighbour changes what is generated.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "engine/engine.h"

namespace quatrain {

struct FakeEngineOptions {
  int64_t vocabulary = 300;
  int64_t context = 512;
  int64_t pages = 1000;
  std::chrono::microseconds step_time{0};
  int32_t poison = -1;  // a token whose forward pass fails
};

class FakeEngine : public Engine {
 public:
  explicit FakeEngine(const FakeEngineOptions& options = {}) : options_(options) {
    config_.vocabulary = options.vocabulary;
    config_.architecture = "fake";
    config_.layers = 1;
  }

  const ModelConfig& config() const override { return config_; }
  int64_t context() const override { return options_.context; }
  int threads() const override { return 1; }
  int64_t weight_bytes_per_token() const override { return 0; }
  int64_t new_sequence() override {
    sequences_[next_] = {};
    return next_++;
  }
  void free_sequence(int64_t sequence) override {
    history(sequence);
    sequences_.erase(sequence);
  }
  int64_t length(int64_t sequence) const override {
    return std::ssize(const_cast<FakeEngine*>(this)->history(sequence));
  }
  void truncate(int64_t sequence, int64_t length) override {
    auto& tokens = history(sequence);
    require(length <= std::ssize(tokens), "truncate past the end");
    tokens.resize(static_cast<size_t>(length));
  }
  int64_t pages_in_use() const override {
    int64_t pages = 0;
    for (const auto& [id, tokens] : sequences_) pages += (std::ssize(tokens) + 63) / 64;
    return pages;
  }
  int64_t pages_in_all() const override { return options_.pages; }

  void forward(std::span<const BatchItem> batch, const LogitsSink& sink) override {
    std::this_thread::sleep_for(options_.step_time);
    most_together = std::max<int64_t>(most_together, std::ssize(batch));
    for (const BatchItem& item : batch) {
      require(length(item.sequence) + std::ssize(item.tokens) <= options_.context, "past the context");
      for (const int32_t token : item.tokens) require(token != options_.poison, "token {} is poison", token);
    }
    std::vector<float> logits(static_cast<size_t>(options_.vocabulary));
    for (size_t i = 0; i < batch.size(); ++i) {
      auto& tokens = history(batch[i].sequence);
      for (size_t t = 0; t < batch[i].tokens.size(); ++t) {
        tokens.push_back(batch[i].tokens[t]);
        const bool last = t + 1 == batch[i].tokens.size();
        if (batch[i].logits == BatchItem::Logits::None ||
            (batch[i].logits == BatchItem::Logits::Last && !last))
          continue;
        fill(tokens, logits);
        sink(static_cast<int64_t>(i), static_cast<int64_t>(t), logits);
      }
    }
    require(pages_in_use() <= options_.pages, "the KV cache is full");
    ++steps;
  }

  /// The logits after `tokens`, in [0, 8), and 8 more for printable ASCII where ids are bytes.
  static void fill(const std::vector<int32_t>& tokens, std::span<float> logits) {
    uint64_t hash = 1;
    for (const int32_t token : tokens) hash = SplitMix64(hash + static_cast<uint64_t>(token)).next();
    SplitMix64 random(hash);
    for (size_t i = 0; i < logits.size(); ++i)
      logits[i] = static_cast<float>(random.uniform() * 8) + (i >= ' ' && i <= '~' ? 8.0f : 0.0f);
  }

  std::atomic<int64_t> steps{0}, most_together{0};

 private:
  std::vector<int32_t>& history(int64_t sequence) {
    const auto found = sequences_.find(sequence);
    require(found != sequences_.end(), "sequence {} does not exist", sequence);
    return found->second;
  }

  FakeEngineOptions options_;
  ModelConfig config_;
  std::map<int64_t, std::vector<int32_t>> sequences_;
  int64_t next_ = 1;
};

}  // namespace quatrain
