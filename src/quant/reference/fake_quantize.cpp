#include "quant/reference/fake_quantize.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "quant/reference/device.h"
#include "quant/reference/operations.h"
#include "quant/reference/row_math.h"

namespace quatrain {
namespace {

// Zero is forced into the range of groups wider than this.
constexpr int64_t kWidestOffsetGroup = 256;

// What a value that is not finite means.
enum class Meaning { Input, Scale };

[[noreturn]] void fail_at(const torch::Tensor& x, int64_t width, int64_t place, const std::string& site,
                          Meaning meaning) {
  require(meaning == Meaning::Input, "{}: a value is too large for an FP16 scale", site);
  fail("{}: the input is {} at token {}, channel {}", site, x.data_ptr<float>()[place], place / width,
       place % width);
}

// Of a GPU, not looked at yet.
struct Check {
  torch::Tensor finite, values;
  int64_t width;
  std::string site;
  Meaning meaning;
};
thread_local std::vector<Check> checks;
constexpr size_t kMostChecks = 16;  // bounds the values that are kept for them

void check_finite(const torch::Tensor& values, int64_t width, std::string_view site, Meaning meaning) {
  if (values.is_cpu()) {
    const int64_t bad = first_not_finite(values.data_ptr<float>(), values.numel());
    if (bad >= 0) fail_at(values, width, bad, std::string(site), meaning);
    return;
  }
  checks.push_back({torch::isfinite(values).all(), values, width, std::string(site), meaning});
  if (checks.size() >= kMostChecks) settle_checks();
}

// Rows [rows, width] of contiguous `values`, quantised; the shape stays.
torch::Tensor quantized_rows(const torch::Tensor& values, int64_t width, int64_t group, const GroupRule& rule,
                             std::string_view site) {
  const int64_t rows = values.numel() / width;
  if (!values.is_cpu()) {
    check_finite(values, width, site, Meaning::Input);
    return operations::quantize_rows(values.reshape({rows, width}), group, rule).reshape(values.sizes());
  }
  torch::Tensor result = torch::empty_like(values);
  const int64_t bad =
      quantize_rows(values.data_ptr<float>(), rows, width, group, rule, result.data_ptr<float>());
  if (bad >= 0) fail_at(values, width, bad, std::string(site), Meaning::Input);
  return result;
}

}  // namespace

void settle_checks() {
  if (checks.empty()) return;
  const std::vector<Check> due = std::exchange(checks, {});
  std::vector<torch::Tensor> finite;
  for (const Check& check : due) finite.push_back(check.finite);
  if (torch::stack(finite).all().item<bool>()) return;
  for (const Check& check : due) {
    const torch::Tensor values = in_memory(check.values);
    const int64_t bad = first_not_finite(values.data_ptr<float>(), values.numel());
    if (bad >= 0) fail_at(values, check.width, bad, check.site, check.meaning);
  }
}

void forget_checks() {
  checks.clear();
}

torch::Tensor fake_quantize(const torch::Tensor& x, const ActivationPolicy& policy, std::string_view site) {
  if (x.requires_grad()) return operations::straight_through(x, fake_quantize(x.detach(), policy, site));
  const torch::Tensor values = x.contiguous();
  const int64_t width = values.size(1);
  if (policy.bits == 16) {
    check_finite(values, width, site, Meaning::Input);
    return x;
  }
  const int64_t group = policy.group == 0 ? width : std::min(policy.group, width);
  return quantized_rows(values, width, group,
                        {policy.bits, policy.symmetric, group > kWidestOffsetGroup, false}, site);
}

torch::Tensor fake_quantize_kv(const torch::Tensor& x, const KvPolicy& policy, std::string_view site) {
  if (x.requires_grad()) return operations::straight_through(x, fake_quantize_kv(x.detach(), policy, site));
  const torch::Tensor values = x.contiguous();
  const int64_t head_dim = values.size(2), width = values.size(1) * head_dim;
  if (policy.bits == 16) {
    check_finite(values, width, site, Meaning::Input);
    return x;
  }
  const int64_t group = policy.group == 0 ? head_dim : policy.group;
  require(head_dim % group == 0, "{}: the KV group {} does not divide the head width {}", site, group,
          head_dim);
  const torch::Tensor result = quantized_rows(
      values, width, group, {policy.bits, policy.symmetric, group > kWidestOffsetGroup, true}, site);
  check_finite(result, width, site, Meaning::Scale);
  return result;
}

}  // namespace quatrain
