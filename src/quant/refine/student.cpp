#include "quant/refine/student.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoint/artifact.h"
#include "quant/math_threads.h"
#include "quant/reference/device.h"
#include "quant/reference/fake_quantize.h"

namespace quatrain {
namespace {

constexpr int64_t kHeadChunk = 256;  // rows of logits at once

std::vector<float> values_of(const torch::Tensor& x) {
  const torch::Tensor values = x.cpu().contiguous();
  return {values.data_ptr<float>(), values.data_ptr<float>() + values.numel()};
}

// The norms that a layer has, by their tensors.
std::vector<std::pair<std::string, torch::Tensor*>> norms_of(DecoderLayer& layer) {
  std::vector<std::pair<std::string, torch::Tensor*>> all;
  const auto add = [&](const char* name, torch::Tensor& weight) {
    if (weight.defined())
      all.emplace_back(fmt::format("model.layers.{}.{}.weight", layer.index(), name), &weight);
  };
  add("input_layernorm", layer.input_norm);
  add("post_attention_layernorm", layer.post_attention_norm);
  add("pre_feedforward_layernorm", layer.pre_mlp_norm);
  add("post_feedforward_layernorm", layer.post_mlp_norm);
  add("self_attn.q_norm", layer.q_norm);
  add("self_attn.k_norm", layer.k_norm);
  return all;
}

}  // namespace

Student::Student(const fs::path& artifact, torch::ScalarType products, torch::Device device)
    : source_(open_weight_source(artifact, device)) {
  const ArtifactReader reader(artifact);
  embedding_ = source_->embedding();
  head_ = source_->head();
  norm_ = source_->plain("model.norm.weight");
  last_norm_ = trained_norm("model.norm.weight", norm_);
  for (int64_t index = 0; index < config().layers; ++index) {
    DecoderLayer& layer = layers_.emplace_back(*source_, index);
    Trained& trained = trained_.emplace_back();
    std::vector<ReferenceLinear*> linears{&layer.q, &layer.k, &layer.v, &layer.o};
    for (DecoderLayer::Mlp& mlp : layer.mlps) linears.insert(linears.end(), {&mlp.gate, &mlp.up, &mlp.down});
    for (ReferenceLinear* linear : linears) {
      if (!reader.has_planes(linear->name)) continue;
      const NibblePlanes planes = reader.planes(linear->name);
      const torch::Tensor scale =
          torch::tensor(planes.scale, torch::kFloat).reshape({planes.rows, -1}).to(device);
      trained.linears.push_back(
          {linear->name, linear, ScaledWeight(planes, products, device), scale, torch::zeros_like(scale)});
      linear->weight.reset();
    }
    for (const auto& [name, weight] : norms_of(layer)) trained.norms.push_back(trained_norm(name, *weight));
  }
}

Student::Norm Student::trained_norm(const std::string& name, torch::Tensor& weight) const {
  return {name, &weight, weight + config().norm_offset, torch::zeros_like(weight)};
}

torch::Tensor Student::weight_of(const Norm& norm) const {
  return norm.gain * (1 + norm.delta) - config().norm_offset;
}

Student::Parameters Student::parameters() const {
  Parameters all;
  for (const Trained& layer : trained_) {
    for (const Scaled& linear : layer.linears) all.scales.push_back(linear.delta);
    for (const Norm& norm : layer.norms) all.norms.push_back(norm.delta);
  }
  all.norms.push_back(last_norm_.delta);
  return all;
}

std::map<std::string, std::vector<float>> Student::scales() const {
  std::map<std::string, std::vector<float>> all;
  for (const Trained& layer : trained_)
    for (const Scaled& linear : layer.linears) {
      torch::Tensor scale = linear.scale * (1 + linear.delta);
      if (linear.weight.half) scale = scale.to(torch::kHalf).to(torch::kFloat);
      // A scale that rounds to zero is refused by readers: such a group keeps what it had.
      scale = torch::where(torch::isfinite(scale).logical_and(scale != 0), scale, linear.scale);
      all[linear.name] = values_of(scale);
    }
  return all;
}

std::map<std::string, std::vector<float>> Student::norms() const {
  std::map<std::string, std::vector<float>> all{{last_norm_.name, values_of(weight_of(last_norm_))}};
  for (const Trained& layer : trained_)
    for (const Norm& norm : layer.norms) all[norm.name] = values_of(weight_of(norm));
  return all;
}

void Student::load(size_t layer) {
  for (Scaled& scaled : trained_[layer].linears) {
    scaled.factors = (scaled.scale / 16 * (1 + scaled.delta)).requires_grad_(true);
    scaled.dense = scaled.weight.dense(scaled.factors);
    scaled.linear->multiply = [&scaled](const torch::Tensor& x) {
      return scaled.weight.product(x, scaled.factors, scaled.dense);
    };
  }
  for (const Norm& norm : trained_[layer].norms) *norm.weight = weight_of(norm).requires_grad_(true);
}

void Student::unload(size_t layer) {
  for (Scaled& scaled : trained_[layer].linears) scaled.factors = scaled.dense = torch::Tensor();
}

std::vector<double> Student::divergence(std::span<const Lesson> lessons, const ReferenceLinear& teacher_head,
                                        ThreadPool& pool, Parameters* gradients) {
  const OneMathThread one_thread_a_lesson;
  const auto each = [&](const std::function<void(size_t lesson)>& body) {
    pool.parallel_for(std::ssize(lessons), 1, [&](int64_t begin, int64_t end, int) {
      at::init_num_threads();  // of this thread
      for (; begin < end; ++begin) {
        body(static_cast<size_t>(begin));
        settle_checks();
      }
    });
  };
  std::vector<std::vector<torch::Tensor>> inputs;  // of every layer, of every lesson
  std::vector<torch::Tensor> hidden(lessons.size());
  for (size_t lesson = 0; lesson < lessons.size(); ++lesson) {
    hidden[lesson] = embedded(embedding_, lessons[lesson].ids) * config().embedding_scale;
  }
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    if (gradients) inputs.push_back(hidden);
    load(layer);
    each([&](size_t lesson) {
      const torch::NoGradGuard no_gradients;
      hidden[lesson] = layers_[layer].forward(hidden[lesson]);
    });
    unload(layer);
  }

  std::vector<double> divergences(lessons.size());
  norm_ = weight_of(last_norm_).requires_grad_(gradients != nullptr);
  std::vector<std::vector<torch::Tensor>> slopes(lessons.size());
  each([&](size_t lesson) {
    const torch::Tensor last = hidden[lesson].detach().requires_grad_(gradients != nullptr);
    const torch::Tensor input = head_.quantize_input(rms_norm(last, norm_, config()));
    const torch::Tensor gradient =
        head_gradient(input.detach(), lessons[lesson].teacher, teacher_head, divergences[lesson]);
    if (!gradients) return;
    slopes[lesson] =
        torch::autograd::grad({input}, {last, norm_}, {gradient / static_cast<double>(lessons.size())});
    hidden[lesson] = slopes[lesson][0];  // from here on: what flows back
  });
  if (!gradients) return divergences;

  // The sum over lessons of d KL / d factor * what the factor is of d; an expert that no token chose has no
  // part in the graph.
  const auto slope_of = [&](size_t leaf, const torch::Tensor& unit) {
    torch::Tensor sum = torch::zeros_like(unit);
    for (const std::vector<torch::Tensor>& of_lesson : slopes)
      if (of_lesson[leaf].defined()) sum += of_lesson[leaf] * unit;
    return sum;
  };
  std::vector<Parameters> of_layers(layers_.size());
  const torch::Tensor last_slope = slope_of(1, last_norm_.gain);
  for (size_t layer = layers_.size(); layer-- > 0;) {
    const Trained& trained = trained_[layer];
    load(layer);
    each([&](size_t lesson) {
      const torch::Tensor x = inputs[layer][lesson].detach().requires_grad_(true);
      std::vector<torch::Tensor> leaves{x};
      for (const Scaled& linear : trained.linears) leaves.push_back(linear.factors);
      for (const Norm& norm : trained.norms) leaves.push_back(*norm.weight);
      slopes[lesson] = torch::autograd::grad({layers_[layer].forward(x)}, leaves, {hidden[lesson]}, false,
                                             false, /*allow_unused=*/true);
      hidden[lesson] = slopes[lesson][0];
    });
    size_t leaf = 0;
    for (const Scaled& linear : trained.linears)
      of_layers[layer].scales.push_back(slope_of(++leaf, linear.scale / 16));
    for (const Norm& norm : trained.norms) of_layers[layer].norms.push_back(slope_of(++leaf, norm.gain));
    unload(layer);
    inputs.pop_back();
  }
  *gradients = {};
  for (const Parameters& of_layer : of_layers) {
    gradients->scales.insert(gradients->scales.end(), of_layer.scales.begin(), of_layer.scales.end());
    gradients->norms.insert(gradients->norms.end(), of_layer.norms.begin(), of_layer.norms.end());
  }
  gradients->norms.push_back(last_slope);
  return divergences;
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
