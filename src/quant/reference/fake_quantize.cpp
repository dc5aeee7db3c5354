#include "quant/reference/fake_quantize.h"

#include <algorithm>
#include <cfloat>
#include <vector>

#include "base/error.h"

namespace quatrain {
namespace {

// Zero is forced into the range of groups wider than this.
constexpr int64_t kWidestOffsetGroup = 256;

void check_finite(const torch::Tensor& x, std::string_view site) {
  const torch::Tensor bad = torch::isfinite(x).logical_not();
  if (!bad.any().item<bool>()) return;
  const torch::Tensor where = bad.nonzero()[0];
  fail("{}: the input is {} at token {}, channel {}", site, x.index({bad})[0].item<float>(),
       where[0].item<int64_t>(), where[1].item<int64_t>());
}

// A divisor as a tensor of one element: dividing by a C++ scalar may become a multiplication on a GPU.
torch::Tensor divisor(const torch::Tensor& like, double value) {
  return torch::full({1}, value, like.options());
}

// Quantises along the last dimension of x [..., group].
torch::Tensor quantize_groups(const torch::Tensor& x, int bits, bool symmetric, int64_t group,
                              bool half_scale) {
  torch::Tensor low = x.amin(-1, true), high = x.amax(-1, true);
  const torch::Tensor magnitude = torch::maximum(low.abs(), high.abs());
  const double codes = static_cast<double>((1 << bits) - 1);
  torch::Tensor scale;
  if (symmetric) {
    scale = magnitude / divisor(x, static_cast<double>((1 << (bits - 1)) - 1));
  } else {
    if (group > kWidestOffsetGroup) {
      low = low.clamp_max(0);
      high = high.clamp_min(0);
    }
    scale = (high - low) / divisor(x, codes);
  }
  scale = torch::maximum(scale, (magnitude / divisor(x, 32767)).clamp_min(FLT_MIN));
  if (half_scale) scale = scale.to(torch::kHalf).to(torch::kFloat).clamp_min(0x1p-24);
  const torch::Tensor empty = magnitude == 0;
  scale = torch::where(empty, torch::ones_like(scale), scale);
  const torch::Tensor zero =
      symmetric ? torch::full_like(scale, static_cast<double>(1 << (bits - 1))) : torch::round(-low / scale);
  const torch::Tensor code = (torch::round(x / scale) + zero).clamp(0, codes);
  return scale * (code - zero);
}

}  // namespace

torch::Tensor fake_quantize(const torch::Tensor& x, const ActivationPolicy& policy, std::string_view site) {
  check_finite(x, site);
  if (policy.bits == 16) return x;
  const int64_t tokens = x.size(0), width = x.size(1);
  const int64_t group = policy.group == 0 ? width : std::min(policy.group, width);
  const int64_t whole = width / group * group;
  std::vector<torch::Tensor> parts;
  if (whole > 0)
    parts.push_back(quantize_groups(x.slice(1, 0, whole).reshape({tokens, whole / group, group}), policy.bits,
                                    policy.symmetric, group, false)
                        .reshape({tokens, whole}));
  if (whole < width)  // the last group of a row may be narrower
    parts.push_back(quantize_groups(x.slice(1, whole, width), policy.bits, policy.symmetric, group, false));
  return parts.size() == 1 ? parts[0] : torch::cat(parts, 1);
}

torch::Tensor fake_quantize_kv(const torch::Tensor& x, const KvPolicy& policy, std::string_view site) {
  check_finite(x.reshape({x.size(0), -1}), site);
  if (policy.bits == 16) return x;
  const int64_t head_dim = x.size(2), group = policy.group == 0 ? head_dim : policy.group;
  require(head_dim % group == 0, "{}: the KV group {} does not divide the head width {}", site, group,
          head_dim);
  const torch::Tensor result = quantize_groups(x.reshape({x.size(0), x.size(1), head_dim / group, group}),
                                               policy.bits, policy.symmetric, group, true)
                                   .reshape(x.sizes());
  require(torch::isfinite(result).all().item<bool>(), "{}: a value is too large for an FP16 scale", site);
  return result;
}

}  // namespace quatrain
