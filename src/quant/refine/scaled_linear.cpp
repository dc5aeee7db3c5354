#include "quant/refine/scaled_linear.h"

#include <algorithm>
#include <vector>

namespace quatrain {
namespace {

// visit(first code, count, its place in the matrix, the group's place among the scales) in order.
template <typename Visit>
void for_each_group(const torch::Tensor& codes, int64_t group, Visit visit) {
  const int64_t columns = codes.size(1), groups = (columns + group - 1) / group;
  const int8_t* data = codes.data_ptr<int8_t>();
  for (int64_t row = 0; row < codes.size(0); ++row)
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t place = row * columns + g * group;
      visit(data + place, std::min(group, columns - g * group), place, row * groups + g);
    }
}

template <typename Value>
void expand(const torch::Tensor& codes, const torch::Tensor& scale, int64_t group, torch::Tensor& weight) {
  const float* scales = scale.data_ptr<float>();
  auto* values = weight.data_ptr<Value>();
  for_each_group(codes, group, [&](const int8_t* code, int64_t count, int64_t place, int64_t index) {
    for (int64_t i = 0; i < count; ++i)
      values[place + i] = static_cast<Value>(scales[index] * static_cast<float>(code[i]));
  });
}

// Of every group, the sum of slope * code. One pass, since FP32 copies of the codes would cost as much as the
// product behind them.
template <typename Value>
torch::Tensor reduce(const torch::Tensor& slope, const torch::Tensor& codes, int64_t group) {
  torch::Tensor sums = torch::empty({codes.size(0), (codes.size(1) + group - 1) / group}, torch::kFloat);
  const auto* values = slope.data_ptr<Value>();
  auto* out = sums.data_ptr<float>();
  for_each_group(codes, group, [&](const int8_t* code, int64_t count, int64_t place, int64_t index) {
    float sum = 0;
    for (int64_t i = 0; i < count; ++i)
      sum += static_cast<float>(values[place + i]) * static_cast<float>(code[i]);
    out[index] = sum;
  });
  return sums;
}

struct Product : torch::autograd::Function<Product> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& /*scale*/, const torch::Tensor& dense,
                               const torch::Tensor& codes, int64_t group) {
    const torch::Tensor input = x.to(dense.scalar_type());
    context->save_for_backward({input, dense, codes});
    context->saved_data["group"] = group;
    return torch::mm(input, dense.t()).to(torch::kFloat);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const torch::Tensor &input = saved[0], &dense = saved[1], &codes = saved[2];
    const int64_t group = context->saved_data["group"].toInt();
    const torch::Tensor flow = gradients[0].to(dense.scalar_type());
    const torch::Tensor slope = torch::mm(flow.t(), input).contiguous();
    return {torch::mm(flow, dense).to(torch::kFloat),
            !codes.is_cpu()                        ? group_sums(slope, codes, group)
            : slope.scalar_type() == torch::kFloat ? reduce<float>(slope, codes, group)
                                                   : reduce<c10::BFloat16>(slope, codes, group),
            torch::Tensor(), torch::Tensor(), torch::Tensor()};
  }
};

}  // namespace

torch::ScalarType fastest_product_type(torch::Device device) {
  if (!device.is_cpu()) return torch::kFloat;
#if defined(__x86_64__)
  // Elsewhere BF16 products are emulated and slower than those of FP32.
  if (__builtin_cpu_supports("avx512bf16") && at::hasMKLDNN()) return torch::kBFloat16;
#endif
  return torch::kFloat;
}

ScaledWeight::ScaledWeight(const NibblePlanes& planes, torch::ScalarType product_type, torch::Device device)
    : codes(torch::empty({planes.rows, planes.columns}, torch::kChar)),
      group(planes.weight_group == 0 ? planes.columns : planes.weight_group),
      half(planes.weight_group != 0),
      type(product_type) {
  NibblePlanes units = planes;  // with scale 1, dequantising gives c / 16 exactly
  std::fill(units.scale.begin(), units.scale.end(), 1.0f);
  std::vector<float> row(static_cast<size_t>(planes.columns));
  for (int64_t r = 0; r < planes.rows; ++r) {
    units.dequantize_row(r, row.data());
    int8_t* out = codes.data_ptr<int8_t>() + r * planes.columns;
    for (size_t c = 0; c < row.size(); ++c) out[c] = static_cast<int8_t>(16 * row[c]);
  }
  codes = codes.to(device);
}

torch::Tensor ScaledWeight::dense(const torch::Tensor& scale) const {
  if (!codes.is_cpu()) return expanded(codes, scale.detach(), group).to(type);
  torch::Tensor weight = torch::empty(codes.sizes(), type);
  if (type == torch::kFloat)
    expand<float>(codes, scale.detach().contiguous(), group, weight);
  else
    expand<c10::BFloat16>(codes, scale.detach().contiguous(), group, weight);
  return weight;
}

torch::Tensor ScaledWeight::product(const torch::Tensor& x, const torch::Tensor& scale,
                                    const torch::Tensor& dense) const {
  return Product::apply(x, scale, dense, codes, group);
}

torch::Tensor expanded(const torch::Tensor& codes, const torch::Tensor& scale, int64_t group) {
  return codes * scale.repeat_interleave(group, 1).slice(1, 0, codes.size(1));
}

torch::Tensor group_sums(const torch::Tensor& slope, const torch::Tensor& codes, int64_t group) {
  const int64_t groups = (codes.size(1) + group - 1) / group;
  return torch::constant_pad_nd(slope.to(torch::kFloat) * codes, {0, groups * group - codes.size(1)})
      .reshape({codes.size(0), groups, group})
      .sum(2);
}

}  // namespace quatrain
