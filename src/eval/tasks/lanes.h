// Sequences of an engine that keep what they hold from one prompt to the next, so that a common beginning
// (few-shot examples, the context that choices share) runs once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace quatrain {

class Lanes {
 public:
  /// As many lanes as the engine's memory holds with sequences of up to `longest` tokens: at least one, at
  /// most `most`.
  Lanes(Engine& engine, int64_t longest, int64_t most);
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  int64_t count() const { return std::ssize(lanes_); }
  int64_t length(int64_t lane) const { return std::ssize(at(lane).tokens); }

  /// Drops what the lane holds past its common beginning with the first `most` of `ids`; returns its length.
  int64_t keep_prefix(int64_t lane, std::span<const int32_t> ids, int64_t most);
  /// Drops the tail so that `length` tokens remain.
  void truncate(int64_t lane, int64_t length);

  /// What one lane takes in a feed().
  struct Part {
    int64_t lane = 0;
    std::span<const int32_t> tokens;
    BatchItem::Logits logits = BatchItem::Logits::None;
  };
  /// Receives the logits behind the lane's token at `position`.
  using Sink = std::function<void(int64_t lane, int64_t position, std::span<const float> logits)>;
  /// Appends tokens to lanes, each at most once, in one forward pass; parts without tokens are left out.
  void feed(std::span<const Part> parts, const Sink& sink);

 private:
  struct Lane {
    int64_t sequence = 0;
    std::vector<int32_t> tokens;
  };
  const Lane& at(int64_t lane) const { return lanes_[static_cast<size_t>(lane)]; }
  Lane& at(int64_t lane) { return lanes_[static_cast<size_t>(lane)]; }

  Engine& engine_;
  std::vector<Lane> lanes_;
};

}  // namespace quatrain
