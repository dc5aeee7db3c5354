#include "ops/hadamard.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/hadamard_row.h"
#include "ops/cpu/isa.h"

namespace quatrain::ops {
namespace {

// The widest kernel whose registers a Sylvester part of `inner` columns fills.
void transform_row(const HadamardRowArguments& transform, float* x) {
#if defined(__x86_64__)
  const Isa isa = active_isa();
  if (isa == Isa::Avx512Vnni && transform.inner >= 16) return hadamard_row_avx512vnni(transform, x);
  if (isa != Isa::Generic && transform.inner >= 8) return hadamard_row_avx2(transform, x);
#endif
  hadamard_row_generic(transform, x);
}

}  // namespace

HadamardTransform::HadamardTransform(int64_t width, int64_t order, uint64_t seed, bool offset)
    : width_(width), order_(order), factors_(factor_hadamard_order(order)) {
  const std::vector<float> signs = hadamard_signs(width, order, seed, offset);
  const float norm = 1.0f / std::sqrt(static_cast<float>(order));
  signs_.resize(signs.size());
  std::transform(signs.begin(), signs.end(), signs_.data(), [norm](float sign) { return sign * norm; });
  const std::vector<int8_t> base = hadamard_base_matrix(factors_.base);
  base_.resize(base.size());
  std::copy(base.begin(), base.end(), base_.data());
}

void HadamardTransform::apply_row(float* x) const {
  thread_local AlignedBuffer<float> scratch;
  if (factors_.base > 1) scratch.resize(static_cast<size_t>(order_));
  transform_row({width_ / order_, factors_.base, int64_t{1} << factors_.power, signs_.data(), base_.data(),
                 scratch.data()},
                x);
}

void HadamardTransform::apply(float* x, int64_t rows, int64_t stride, ThreadPool& pool) const {
  constexpr int64_t kGrainValues = 16384;  // a few microseconds: below that a second thread does not pay
  pool.parallel_for(rows, std::max<int64_t>(1, kGrainValues / width_), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) apply_row(x + row * stride);
  });
}

}  // namespace quatrain::ops
