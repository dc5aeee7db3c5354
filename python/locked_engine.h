// An engine that several threads may use: each call has it alone, so threads take turns token by token.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "engine/engine.h"

namespace quatrain {

class LockedEngine : public Engine {
 public:
  explicit LockedEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  const ModelConfig& config() const override { return engine_->config(); }
  int64_t context() const override { return engine_->context(); }
  int threads() const override { return engine_->threads(); }
  int64_t weight_bytes_per_token() const override { return engine_->weight_bytes_per_token(); }

  int64_t new_sequence() override {
    const Turn turn(*this);
    return engine_->new_sequence();
  }
  void free_sequence(int64_t sequence) override {
    const Turn turn(*this);
    engine_->free_sequence(sequence);
  }
  int64_t length(int64_t sequence) const override {
    const Turn turn(*this);
    return engine_->length(sequence);
  }
  void truncate(int64_t sequence, int64_t length) override {
    const Turn turn(*this);
    engine_->truncate(sequence, length);
  }
  int64_t reusable(int64_t sequence, int64_t length) const override {
    const Turn turn(*this);
    return engine_->reusable(sequence, length);
  }
  int64_t pages_in_use() const override {
    const Turn turn(*this);
    return engine_->pages_in_use();
  }
  int64_t pages_in_all() const override {
    const Turn turn(*this);
    return engine_->pages_in_all();
  }
  void forward(std::span<const BatchItem> batch, const LogitsSink& sink) override {
    const Turn turn(*this);
    engine_->forward(batch, sink);
  }

 private:
  // First come, first served: a plain mutex would let the thread that just left enter again.
  class Turn {
   public:
    explicit Turn(const LockedEngine& engine) : engine_(engine) {
      std::unique_lock lock(engine.mutex_);
      const uint64_t ticket = engine.next_++;
      engine.changed_.wait(lock, [&] { return engine.serving_ == ticket; });
    }
    ~Turn() {
      const std::lock_guard lock(engine_.mutex_);
      ++engine_.serving_;
      engine_.changed_.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    const LockedEngine& engine_;
  };

  std::unique_ptr<Engine> engine_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable uint64_t next_ = 0, serving_ = 0;
};

}  // namespace quatrain
