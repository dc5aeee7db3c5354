#include "quant/reference/fake_quantize.h"

#include <algorithm>

#include "base/error.h"
#include "quant/reference/differentiable.h"
#include "quant/reference/row_math.h"

namespace quatrain {
namespace {

// Zero is forced into the range of groups wider than this.
constexpr int64_t kWidestOffsetGroup = 256;

[[noreturn]] void fail_at(const torch::Tensor& x, int64_t width, int64_t place, std::string_view site) {
  fail("{}: the input is {} at token {}, channel {}", site, x.data_ptr<float>()[place], place / width,
       place % width);
}

}  // namespace

torch::Tensor fake_quantize(const torch::Tensor& x, const ActivationPolicy& policy, std::string_view site) {
  if (x.requires_grad()) return differentiable::straight_through(x, fake_quantize(x.detach(), policy, site));
  const torch::Tensor values = x.contiguous();
  const int64_t tokens = values.size(0), width = values.size(1);
  const auto* data = values.data_ptr<float>();
  if (policy.bits == 16) {
    const int64_t bad = first_not_finite(data, values.numel());
    if (bad >= 0) fail_at(values, width, bad, site);
    return x;
  }
  const int64_t group = policy.group == 0 ? width : std::min(policy.group, width);
  const GroupRule rule{policy.bits, policy.symmetric, group > kWidestOffsetGroup, false};
  torch::Tensor result = torch::empty_like(values);
  const int64_t bad = quantize_rows(data, tokens, width, group, rule, result.data_ptr<float>());
  if (bad >= 0) fail_at(values, width, bad, site);
  return result;
}

torch::Tensor fake_quantize_kv(const torch::Tensor& x, const KvPolicy& policy, std::string_view site) {
  if (x.requires_grad())
    return differentiable::straight_through(x, fake_quantize_kv(x.detach(), policy, site));
  const torch::Tensor values = x.contiguous();
  const int64_t head_dim = values.size(2), width = values.size(1) * head_dim;
  const auto* data = values.data_ptr<float>();
  if (policy.bits == 16) {
    const int64_t bad = first_not_finite(data, values.numel());
    if (bad >= 0) fail_at(values, width, bad, site);
    return x;
  }
  const int64_t group = policy.group == 0 ? head_dim : policy.group;
  require(head_dim % group == 0, "{}: the KV group {} does not divide the head width {}", site, group,
          head_dim);
  const GroupRule rule{policy.bits, policy.symmetric, group > kWidestOffsetGroup, true};
  torch::Tensor result = torch::empty_like(values);
  auto* quantized = result.data_ptr<float>();
  const int64_t bad = quantize_rows(data, values.size(0), width, group, rule, quantized);
  if (bad >= 0) fail_at(values, width, bad, site);
  require(first_not_finite(quantized, result.numel()) < 0, "{}: a value is too large for an FP16 scale",
          site);
  return result;
}

}  // namespace quatrain
