// The rotation of one head over cpu/vec.h.
#pragma once

#include "ops/cpu/rope.h"
#include "ops/cpu/vec.h"

namespace quatrain::ops::QUATRAIN_VEC_ISA {

inline void rope_head(float* low, float* high, int64_t half, const float* cosine, const float* sine) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vec a = load(low + i), b = load(high + i), c = load(cosine + i), s = load(sine + i);
    store(low + i, sub(mul(a, c), mul(b, s)));
    store(high + i, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = low[i], b = high[i];
    low[i] = a * cosine[i] - b * sine[i];
    high[i] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace quatrain::ops::QUATRAIN_VEC_ISA
