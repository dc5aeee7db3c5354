// SiLU and tanh-GELU gates over cpu/vec.h.
#pragma once

#include "ops/cpu/gated_activation.h"
#include "ops/cpu/vec.h"

namespace quatrain::ops::QUATRAIN_VEC_ISA {

template <GateFunction Function>
inline Vec gate_times(Vec gate, Vec up) {
  Vec exponent = sub(zero(), gate);
  if constexpr (Function == GateFunction::GeluTanh) {
    const Vec cubic = fma(mul(mul(gate, gate), gate), broadcast(0.044715f), gate);
    exponent = mul(cubic, broadcast(-1.5957691216f));  // -2 sqrt(2 / pi)
  }
  return mul(div(gate, add(broadcast(1.0f), exp(exponent))), up);
}

template <GateFunction Function>
inline void gate_row(const float* gate, const float* up, int64_t count, float* y) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, gate_times<Function>(load(gate + i), load(up + i)));
  const int64_t left = count - i;
  if (left > 0)
    store_first(y + i, gate_times<Function>(load_first(gate + i, left), load_first(up + i, left)), left);
}

inline void gate_run(GateFunction function, const float* gate, const float* up, int64_t count, float* y) {
  if (function == GateFunction::Silu) return gate_row<GateFunction::Silu>(gate, up, count, y);
  return gate_row<GateFunction::GeluTanh>(gate, up, count, y);
}

}  // namespace quatrain::ops::QUATRAIN_VEC_ISA
