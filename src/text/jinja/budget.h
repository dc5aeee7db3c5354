// What one render may spend, so that no template can hang or exhaust the program.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace quatrain::jinja {

/// Nesting of expressions and blocks in the source: parser, evaluator and destructors recurse.
inline constexpr int kMaxSourceDepth = 150;
/// Nesting of lists, dicts and other containers: printing, comparing and destructors recurse.
inline constexpr int kMaxValueDepth = 400;

/// Counts down while a template renders. Legitimate templates on a million-token conversation stay two orders
/// of magnitude below each limit.
class Budget {
 public:
  static constexpr uint64_t kMaxSteps = 20'000'000;         // nodes evaluated, items visited
  static constexpr uint64_t kMaxBytes = uint64_t{1} << 31;  // all values ever created
  static constexpr size_t kMaxTextBytes = size_t{1} << 26;  // one string
  static constexpr int kMaxDepth = 900;                     // nested evaluations: the C++ stack
  static constexpr size_t kBytesPerItem = 64;               // what an item of a container is charged

  void step(uint64_t count = 1) {
    steps_ += count;
    require(steps_ <= kMaxSteps, "the template runs for more than {} steps", kMaxSteps);
  }
  /// Called before the bytes are allocated.
  void bytes(uint64_t count) {
    require(count <= kMaxBytes && bytes_ + count <= kMaxBytes,
            "the template creates more than {} MiB of values", kMaxBytes >> 20);
    bytes_ += count;
  }
  void text(uint64_t size) {
    require(size <= kMaxTextBytes, "the template creates a string of more than {} MiB", kMaxTextBytes >> 20);
    bytes(size + kBytesPerItem);
  }
  void items(uint64_t count) {
    require(count <= kMaxBytes / kBytesPerItem, "the template creates a list of more than {} items",
            kMaxBytes / kBytesPerItem);
    bytes(count * kBytesPerItem + kBytesPerItem);
  }

  /// One level of evaluation while it lives.
  class Level {
   public:
    explicit Level(Budget& budget) : budget_(budget) {
      require(budget_.depth_ < kMaxDepth, "the template recurses deeper than {} levels", kMaxDepth);
      ++budget_.depth_;
    }
    ~Level() { --budget_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Budget& budget_;
  };

 private:
  uint64_t steps_ = 0;
  uint64_t bytes_ = 0;
  int depth_ = 0;
};

}  // namespace quatrain::jinja
