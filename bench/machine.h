// Ceilings of the machine, measured in the run whose figures are divided by them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"

namespace quatrain::bench {

/// Seconds that `work` takes.
template <typename Work>
double seconds(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The value below which the share `q` in [0, 1] of the values lies; of at least one.
double quantile(std::vector<double> values, double q);

/// Reads every byte of data[0, size) once with all threads, in chunks that are shared out in turn.
void read_all(const uint8_t* data, int64_t size, ThreadPool& pool);

/// Multiply-adds counted as 2 operations, a second, of the integer dot product of the instruction set in use
/// (vpdpbusd at 512 or 256 bits; maddubs, madd, add on AVX2), from registers, on all threads. 0 on other
/// machines.
double dot_peak(ThreadPool& pool);

}  // namespace quatrain::bench
