#include "ops/argmax.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/argmax.h"
#include "ops/cpu/select.h"

namespace quatrain::ops {
namespace {

constexpr int64_t kBlock = 4096;  // values whose maximum is found before its place

}  // namespace

int64_t argmax(std::span<const float> values) {
  const ArgmaxKernel largest =
      select_kernel(active_isa(), argmax_kernel_generic, argmax_kernel_avx2, argmax_kernel_avx512);
  const auto count = std::ssize(values);
  float best = 0;
  int64_t first = 0;  // of the block that holds it
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    bool nan = false;
    const float top = largest(values.data() + begin, std::min(kBlock, count - begin), nan);
    if (nan)
      return std::find_if(values.begin() + begin, values.end(), [](float x) { return std::isnan(x); }) -
             values.begin();
    if (begin == 0 || top > best) {
      best = top;
      first = begin;
    }
  }
  return std::find(values.begin() + first, values.end(), best) - values.begin();
}

}  // namespace quatrain::ops
