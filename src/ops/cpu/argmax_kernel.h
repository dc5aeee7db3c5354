// The largest of many values, over cpu/vec.h.
#pragma once

#include "ops/cpu/argmax.h"
#include "ops/cpu/vec.h"

namespace quatrain::ops::QUATRAIN_VEC_ISA {

inline float largest(const float* x, int64_t count, bool& nan) {
  // min and max give their second operand where either is NaN: min(1, max(0, x)) is NaN for NaN, else in [0,
  // 1].
  Vec top = broadcast(-__builtin_inff()), odd = zero();
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vec value = load(x + i);
    top = max(value, top);
    odd = add(odd, min(broadcast(1), max(zero(), value)));
  }
  float best = max_lane(top), rest = 0;
  for (; i < count; ++i) {
    best = x[i] > best ? x[i] : best;
    rest += x[i] == x[i] ? 0 : x[i];
  }
  const float sum = sum_lanes(odd) + rest;
  nan = sum != sum;
  return best;
}

}  // namespace quatrain::ops::QUATRAIN_VEC_ISA
