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
  QkvTransform,
  OutputTransform,
  GateUpTransform,
  DownTransform,
  HeadTransform,
  KeyTransform,
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
  /// The same, but for `seconds` of it that belong to `inner`.
  void lap(Operator op, Operator inner, double seconds) {
    lap(op);
    seconds_[static_cast<size_t>(op)] -= seconds;
    seconds_[static_cast<size_t>(inner)] += seconds;
  }
  /// The time since the last lap, in which threads ran with clocks of their own: shared out in proportion to
  /// what these booked, `clock_of` each of `threads`. They are cleared.
  template <typename Threads, typename ClockOf>
  void lap(Threads& threads, const ClockOf& clock_of) {
    const Clock::time_point now = Clock::now();
    std::array<double, kCount> sums{};
    double total = 0;
    for (auto& thread : threads) {
      OperatorClock& clock = clock_of(thread);
      for (size_t op = 0; op < kCount; ++op) sums[op] += clock.seconds_[op];
      clock.clear();
    }
    for (const double sum : sums) total += sum;
    const double scale = total > 0 ? std::chrono::duration<double>(now - last_).count() / total : 0;
    for (size_t op = 0; op < kCount; ++op) seconds_[op] += scale * sums[op];
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
  constexpr std::string_view names[] = {"embedding",
                                        "norm",
                                        "qkv_transform",
                                        "output_transform",
                                        "gate_up_transform",
                                        "down_transform",
                                        "head_transform",
                                        "key_transform",
                                        "quantize",
                                        "qkv",
                                        "rope",
                                        "kv_append",
                                        "attention",
                                        "output",
                                        "gate_up",
                                        "activation",
                                        "down",
                                        "experts",
                                        "head"};
  static_assert(std::size(names) == OperatorClock::kCount);
  return names[static_cast<size_t>(op)];
}

/// The transform of the input of a product: of Qkv, Output, GateUp, Down or Head.
constexpr Operator transform_before(Operator product) {
  switch (product) {
    case Operator::Qkv:
      return Operator::QkvTransform;
    case Operator::Output:
      return Operator::OutputTransform;
    case Operator::GateUp:
      return Operator::GateUpTransform;
    case Operator::Down:
      return Operator::DownTransform;
    default:
      return Operator::HeadTransform;
  }
}

}  // namespace quatrain
