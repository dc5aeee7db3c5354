// Runs a check once for every instruction set that this machine has, and makes random inputs.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "ops/cpu/isa.h"

namespace quatrain::ops {

template <typename Check>
void each_isa(const Check& check) {
  const Isa before = active_isa();
  for (const Isa isa : {Isa::Generic, Isa::Avx2, Isa::AvxVnni, Isa::Avx512Vnni}) {
    if (!has_isa(isa)) continue;
    SCOPED_TRACE(name_of(isa));
    set_isa(isa);
    check();
  }
  set_isa(before);
}

inline std::vector<float> random_values(int64_t count, uint64_t seed, float scale = 1) {
  SplitMix64 random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = scale * static_cast<float>(random.normal());
  return values;
}

}  // namespace quatrain::ops
