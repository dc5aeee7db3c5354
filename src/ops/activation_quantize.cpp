#include "ops/activation_quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "ops/cpu/activation_quantize_row.h"
#include "ops/cpu/isa.h"

namespace quatrain::ops {
namespace {

constexpr int64_t kCodeAlignment = 64;

bool quantize_row(const QuantizeRowArguments& row) {
  switch (active_isa()) {
#if defined(__x86_64__)
    case Isa::Avx512Vnni:
      return quantize_row_avx512vnni(row);
    case Isa::AvxVnni:
    case Isa::Avx2:
      return quantize_row_avx2(row);
#endif
    default:
      return quantize_row_generic(row);
  }
}

[[noreturn]] void fail_not_finite(const float* x, int64_t first, int64_t last, int64_t token,
                                  std::string_view site) {
  int64_t channel = first;
  while (channel < last - 1 && std::isfinite(x[channel])) ++channel;
  fail("{}: the input of token {} is {} at channel {}; the weights or an earlier layer overflow", site, token,
       x[channel], channel);
}

}  // namespace

void shape_activations(int64_t tokens, int64_t width, const ActivationPolicy& policy,
                       QuantizedActivations& out) {
  require(policy.bits == 4 || policy.bits == 8, "activation bits: {} is neither 4 nor 8", policy.bits);
  require(tokens >= 0 && width > 0 && policy.group >= 0,
          "activations of {} tokens, {} columns in groups of {} have no shape", tokens, width, policy.group);
  out.tokens = tokens;
  out.width = width;
  out.group = policy.group == 0 ? width : std::min(policy.group, width);
  out.groups = (width + out.group - 1) / out.group;
  out.stride = (width + kCodeAlignment - 1) / kCodeAlignment * kCodeAlignment;
  out.bits = policy.bits;
  out.first_token = 0;
  out.codes.resize(static_cast<size_t>(tokens * out.stride));
  out.scale.resize(static_cast<size_t>(tokens * out.groups));
  out.zero.resize(static_cast<size_t>(tokens * out.groups));
}

void quantize_activation_columns(const float* x, int64_t token, int64_t first, int64_t last,
                                 const ActivationPolicy& policy, std::string_view site,
                                 QuantizedActivations& out) {
  uint8_t* codes = out.codes.data() + token * out.stride;
  const int64_t at = token * out.groups + first / out.group;
  const bool finite = quantize_row({x + first, last - first, out.group, out.bits, policy.symmetric,
                                    codes + first, out.scale.data() + at, out.zero.data() + at});
  if (!finite) fail_not_finite(x, first, last, out.first_token + token, site);
  if (last == out.width) std::memset(codes + out.width, 0, static_cast<size_t>(out.stride - out.width));
}

void quantize_activations(const float* x, int64_t tokens, int64_t stride, int64_t width,
                          const ActivationPolicy& policy, std::string_view site, ThreadPool& pool,
                          QuantizedActivations& out) {
  shape_activations(tokens, width, policy, out);
  constexpr int64_t kGrainValues = 16384;  // a few microseconds: below that a second thread does not pay
  pool.parallel_for(tokens, std::max<int64_t>(1, kGrainValues / width), [&](int64_t begin, int64_t end, int) {
    for (int64_t token = begin; token < end; ++token)
      quantize_activation_columns(x + token * stride, token, 0, width, policy, site, out);
  });
}

}  // namespace quatrain::ops
