// The one generator behind every random sign, permutation and sample: splitmix64, the same on every platform.
#pragma once

#include <cstdint>

namespace quatrain {

/// Steele, Lea, Flood (OOPSLA 2014). A seed gives one stream.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

  /// Uniform in [0, 1) with 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  /// Uniform in [0, bound): the high word of a 64 x 64 product; the bias is below bound / 2^64.
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }

  /// +1 or -1.
  int sign() { return (next() >> 63) != 0 ? -1 : 1; }

  /// Standard normal (Box-Muller, one value a call so that the stream is easy to reproduce).
  double normal();

 private:
  uint64_t state_;
};

}  // namespace quatrain
