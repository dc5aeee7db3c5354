#include "quant/refine/student.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "base/error.h"
#include "checkpoint/artifact.h"

namespace quatrain {
namespace {

constexpr int64_t kHeadChunk = 256;  // rows of logits at once

torch::Tensor codes_of(const NibblePlanes& planes) {
  NibblePlanes units = planes;  // with scale 1, dequantising gives c / 16 exactly
  std::fill(units.scale.begin(), units.scale.end(), 1.0f);
  torch::Tensor codes = torch::empty({planes.rows, planes.columns}, torch::kChar);
  std::vector<float> row(static_cast<size_t>(planes.columns));
  for (int64_t r = 0; r < planes.rows; ++r) {
    units.dequantize_row(r, row.data());
    int8_t* out = codes.data_ptr<int8_t>() + r * planes.columns;
    for (size_t c = 0; c < row.size(); ++c) out[c] = static_cast<int8_t>(16 * row[c]);
  }
  return codes;
}

// W = codes * scale with a scale for every `group` columns; one pass over the codes each way, since as tensor
// operations the FP32 copies of the codes would cost as much as the products.
struct ScaledCodes : torch::autograd::Function<ScaledCodes> {
  // codes int8 [out, in], scale FP32 [out, groups] -> FP32 [out, in].
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& codes,
                               const torch::Tensor& scale, int64_t group) {
    context->saved_data["codes"] = codes;
    context->saved_data["group"] = group;
    torch::Tensor weight = torch::empty(codes.sizes(), torch::kFloat);
    for_each_group(codes, scale, group, [&](const int8_t* code, int64_t count, int64_t at, int64_t index) {
      const float s = scale.data_ptr<float>()[index];
      float* out = weight.data_ptr<float>() + at;
      for (int64_t i = 0; i < count; ++i) out[i] = s * static_cast<float>(code[i]);
    });
    return weight;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::Tensor codes = context->saved_data["codes"].toTensor();
    const int64_t group = context->saved_data["group"].toInt();
    const torch::Tensor slope = gradients[0].contiguous();
    torch::Tensor result = torch::empty({codes.size(0), (codes.size(1) + group - 1) / group}, torch::kFloat);
    for_each_group(codes, result, group, [&](const int8_t* code, int64_t count, int64_t at, int64_t index) {
      const float* from = slope.data_ptr<float>() + at;
      float sum = 0;
      for (int64_t i = 0; i < count; ++i) sum += from[i] * static_cast<float>(code[i]);
      result.data_ptr<float>()[index] = sum;
    });
    return {torch::Tensor(), result, torch::Tensor()};
  }

 private:
  // visit(first code, count, its place in the matrix, the group's place among the scales), rows in parallel.
  template <typename Visit>
  static void for_each_group(const torch::Tensor& codes, const torch::Tensor& scale, int64_t group,
                             Visit visit) {
    const int64_t columns = codes.size(1), groups = scale.size(1);
    at::parallel_for(0, codes.size(0), 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t g = 0; g < groups; ++g) {
          const int64_t place = row * columns + g * group;
          visit(codes.data_ptr<int8_t>() + place, std::min(group, columns - g * group), place,
                row * groups + g);
        }
    });
  }
};

torch::Tensor copy_of(const std::vector<float>& values, int64_t rows) {
  return torch::tensor(values, torch::kFloat).reshape({rows, -1});
}

}  // namespace

Student::Student(const fs::path& artifact) : source_(open_weight_source(artifact)) {
  const ArtifactReader reader(artifact);
  embedding_ = source_->embedding();
  head_ = source_->head();
  norm_ = source_->plain("model.norm.weight");
  for (int64_t index = 0; index < config().layers; ++index) {
    DecoderLayer& layer = layers_.emplace_back(*source_, index);
    std::vector<ReferenceLinear*> linears{&layer.q, &layer.k, &layer.v, &layer.o};
    for (DecoderLayer::Mlp& mlp : layer.mlps) linears.insert(linears.end(), {&mlp.gate, &mlp.up, &mlp.down});
    std::vector<Scaled>& scaled = scaled_.emplace_back();
    for (ReferenceLinear* linear : linears) {
      if (!reader.has_planes(linear->name)) continue;
      const NibblePlanes planes = reader.planes(linear->name);
      const torch::Tensor scale = copy_of(planes.scale, planes.rows);
      scaled.push_back({linear->name, linear, codes_of(planes), scale,
                        torch::zeros_like(scale).requires_grad_(true),
                        planes.weight_group == 0 ? planes.columns : planes.weight_group});
      linear->weight.reset();
    }
  }
}

std::vector<torch::Tensor> Student::parameters() const {
  std::vector<torch::Tensor> all;
  for (const std::vector<Scaled>& layer : scaled_)
    for (const Scaled& linear : layer) all.push_back(linear.delta);
  return all;
}

std::map<std::string, std::vector<float>> Student::scales() const {
  const torch::NoGradGuard no_gradients;
  std::map<std::string, std::vector<float>> all;
  for (const std::vector<Scaled>& layer : scaled_)
    for (const Scaled& linear : layer) {
      torch::Tensor scale = linear.scale * (1 + linear.delta);
      const bool whole_rows = linear.group == linear.codes.size(1);
      if (!whole_rows) scale = scale.to(torch::kHalf).to(torch::kFloat);
      // A scale that rounds to zero is refused by readers: such a group keeps what it had.
      scale = torch::where(torch::isfinite(scale).logical_and(scale != 0), scale, linear.scale).contiguous();
      all[linear.name].assign(scale.data_ptr<float>(), scale.data_ptr<float>() + scale.numel());
    }
  return all;
}

torch::Tensor Student::run_layer(size_t index, const torch::Tensor& hidden) {
  for (const Scaled& linear : scaled_[index]) {
    const torch::Tensor scale = linear.scale / 16 * (1 + linear.delta);
    linear.linear->weight = ScaledCodes::apply(linear.codes, scale, linear.group);
  }
  torch::Tensor out = layers_[index].forward(hidden);
  for (const Scaled& linear : scaled_[index]) linear.linear->weight.reset();
  return out;
}

double Student::divergence(const std::vector<int32_t>& ids, const torch::Tensor& teacher,
                           const ReferenceLinear& teacher_head, bool learn) {
  std::vector<torch::Tensor> hidden;  // before every layer
  torch::Tensor last;
  {
    const torch::NoGradGuard no_gradients;
    const torch::Tensor index = torch::tensor(ids, torch::kInt).to(torch::kLong);
    last = embedding_.index_select(0, index) * config().embedding_scale;
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      if (learn) hidden.push_back(last);
      last = run_layer(layer, last);
    }
  }
  last = last.detach().requires_grad_(learn);
  const torch::Tensor input = head_.quantize_input(rms_norm(last, norm_, config()));
  double divergence = 0;
  const torch::Tensor gradient = head_gradient(input.detach(), teacher, teacher_head, divergence);
  if (!learn) return divergence;
  input.backward(gradient);
  torch::Tensor flow = last.grad();
  for (size_t layer = layers_.size(); layer-- > 0;) {  // each layer runs again, with its graph
    const torch::Tensor x = hidden[layer].detach().requires_grad_(true);
    run_layer(layer, x).backward(flow);
    flow = x.grad();
    hidden.pop_back();
  }
  return divergence;
}

// d KL / d input = (softmax(student) - softmax(teacher)) W / tokens.
torch::Tensor Student::head_gradient(const torch::Tensor& input, const torch::Tensor& teacher,
                                     const ReferenceLinear& teacher_head, double& divergence) const {
  const torch::NoGradGuard no_gradients;
  const int64_t tokens = input.size(0);
  torch::Tensor gradient = torch::empty_like(input);
  double sum = 0;
  for (int64_t begin = 0; begin < tokens; begin += kHeadChunk) {
    const int64_t end = std::min(begin + kHeadChunk, tokens);
    const torch::Tensor ours = torch::log_softmax(head_.product(input.slice(0, begin, end)), -1);
    const torch::Tensor wanted = torch::log_softmax(teacher_head.product(teacher.slice(0, begin, end)), -1);
    const torch::Tensor share = wanted.exp();
    sum += (share * (wanted - ours)).sum(torch::kDouble).item<double>();
    gradient.slice(0, begin, end) = (ours.exp() - share).matmul(head_.weight);
  }
  divergence = sum / static_cast<double>(tokens);
  return gradient / static_cast<double>(tokens);
}

}  // namespace quatrain
