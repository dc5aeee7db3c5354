// RMSNorm of one row over cpu/vec.h.
#pragma once

#include "ops/cpu/rms_norm.h"
#include "ops/cpu/vec.h"

namespace quatrain::ops::QUATRAIN_VEC_ISA {

inline float rms_square_sum(const float* x, int64_t width) {
  Vec sum[4] = {zero(), zero(), zero(), zero()};  // four chains cover the latency of FMA
  int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes)
    for (int j = 0; j < 4; ++j) {
      const Vec value = load(x + i + j * kLanes);
      sum[j] = fma(value, value, sum[j]);
    }
  for (; i < width; i += kLanes) {
    const Vec value = width - i >= kLanes ? load(x + i) : load_first(x + i, width - i);
    sum[0] = fma(value, value, sum[0]);
  }
  return sum_lanes(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

inline void rms_scale(const float* x, int64_t width, float factor, const float* weight, float* y) {
  const Vec by = broadcast(factor);
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(y + i, mul(mul(load(x + i), by), load(weight + i)));
  if (i < width)
    store_first(y + i, mul(mul(load_first(x + i, width - i), by), load_first(weight + i, width - i)),
                width - i);
}

}  // namespace quatrain::ops::QUATRAIN_VEC_ISA
