// Whether the kernels of the instruction set in use compute what the generic ones do.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/cpu/isa.h"

namespace quatrain {

/// Computes steps of a forward pass twice from the same input, the second time by the generic kernels. Whole
/// passes cannot be compared: rounding in another order now and then moves a value to the next 4-bit code,
/// and layers amplify that.
class KernelCheck {
 public:
  bool on = false;
  double deviation = 0;  // the largest so far: rms of the difference over rms of the result
  std::string where;     // it was found

  /// `step` has just written `count` values to `out`: runs it again by the generic kernels, compares, and
  /// puts the first result back.
  template <typename Step>
  void compare(const char* name, int64_t index, float* out, int64_t count, const Step& step) {
    if (!on) return;
    const std::vector<float> first(out, out + count);
    const ops::Isa isa = ops::active_isa();
    ops::set_isa(ops::Isa::Generic);
    step();
    ops::set_isa(isa);
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; ++i) {
      difference += std::pow(static_cast<double>(out[i]) - first[static_cast<size_t>(i)], 2);
      size += std::pow(static_cast<double>(out[i]), 2);
    }
    std::copy(first.begin(), first.end(), out);
    const double relative = difference == 0 ? 0 : std::sqrt(difference / size);
    if (relative <= deviation) return;
    deviation = relative;
    where = index < 0 ? name : "layer " + std::to_string(index) + " " + name;
  }
};

}  // namespace quatrain
