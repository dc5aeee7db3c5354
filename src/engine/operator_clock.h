// Where the time of forward passes goes, operator by operator.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <string_view>

namespace quatrain {

enum class Operator {
  Embedding,
  Norm,
  Transform,
  Quantize,
  Qkv,
  Rope,
  KvAppend,
  Attention,
  Output,
  GateUp,
  Activation,
  Down,
  Experts,
  Head,
  Count
};

/// Wall time between successive laps, added up by operator. A lap costs some 20 ns against the microseconds
/// of an operator, so the clock always runs.
class OperatorClock {
 public:
  static constexpr size_t kCount = static_cast<size_t>(Operator::Count);

  /// The time since the last lap belongs to nobody.
  void start() { last_ = Clock::now(); }
  /// The time since the last lap belongs to `op`.
  void lap(Operator op) {
    const Clock::time_point now = Clock::now();
    seconds_[static_cast<size_t>(op)] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }
  double seconds(Operator op) const { return seconds_[static_cast<size_t>(op)]; }
  void clear() { seconds_ = {}; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = Clock::now();
  std::array<double, kCount> seconds_{};
};

constexpr std::string_view name_of(Operator op) {
  constexpr std::string_view names[] = {"embedding",  "norm",      "transform", "quantize", "qkv",
                                        "rope",       "kv_append", "attention", "output",   "gate_up",
                                        "activation", "down",      "experts",   "head"};
  static_assert(std::size(names) == OperatorClock::kCount);
  return names[static_cast<size_t>(op)];
}

}  // namespace quatrain
