#include "quant/refine/student.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "checkpoint/artifact.h"
#include "quant/math_threads.h"
#include "quant/reference/device.h"
#include "quant/reference/fake_quantize.h"

namespace quatrain {
namespace {

constexpr int64_t kHeadChunk = 256;  // rows of logits at once

}  // namespace

Student::Student(const fs::path& artifact, torch::ScalarType products, torch::Device device)
    : source_(open_weight_source(artifact, device)) {
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
      const torch::Tensor scale =
          torch::tensor(planes.scale, torch::kFloat).reshape({planes.rows, -1}).to(device);
      scaled.push_back(
          {linear->name, linear, ScaledWeight(planes, products, device), scale, torch::zeros_like(scale)});
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
  std::map<std::string, std::vector<float>> all;
  for (const std::vector<Scaled>& layer : scaled_)
    for (const Scaled& linear : layer) {
      torch::Tensor scale = linear.scale * (1 + linear.delta);
      if (linear.weight.half) scale = scale.to(torch::kHalf).to(torch::kFloat);
      // A scale that rounds to zero is refused by readers: such a group keeps what it had.
      scale = torch::where(torch::isfinite(scale).logical_and(scale != 0), scale, linear.scale)
                  .cpu()
                  .contiguous();
      all[linear.name].assign(scale.data_ptr<float>(), scale.data_ptr<float>() + scale.numel());
    }
  return all;
}

void Student::load(size_t layer) {
  for (Scaled& scaled : scaled_[layer]) {
    scaled.factors = (scaled.scale / 16 * (1 + scaled.delta)).requires_grad_(true);
    scaled.dense = scaled.weight.dense(scaled.factors);
    scaled.linear->multiply = [&scaled](const torch::Tensor& x) {
      return scaled.weight.product(x, scaled.factors, scaled.dense);
    };
  }
}

void Student::unload(size_t layer) {
  for (Scaled& scaled : scaled_[layer]) scaled.factors = scaled.dense = torch::Tensor();
}

std::vector<double> Student::divergence(std::span<const Lesson> lessons, const ReferenceLinear& teacher_head,
                                        ThreadPool& pool, std::vector<torch::Tensor>* gradients) {
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
  each([&](size_t lesson) {
    const torch::Tensor last = hidden[lesson].detach().requires_grad_(gradients != nullptr);
    const torch::Tensor input = head_.quantize_input(rms_norm(last, norm_, config()));
    const torch::Tensor gradient =
        head_gradient(input.detach(), lessons[lesson].teacher, teacher_head, divergences[lesson]);
    if (!gradients) return;
    input.backward(gradient / static_cast<double>(lessons.size()));
    hidden[lesson] = last.grad();  // from here on: what flows back
  });
  if (!gradients) return divergences;

  gradients->clear();
  for (const torch::Tensor& parameter : parameters()) gradients->push_back(torch::zeros_like(parameter));
  size_t first = gradients->size();  // of the layer's
  for (size_t layer = layers_.size(); layer-- > 0;) {
    const std::vector<Scaled>& scaled = scaled_[layer];
    first -= scaled.size();
    load(layer);
    std::vector<std::vector<torch::Tensor>> slopes(lessons.size());
    each([&](size_t lesson) {
      const torch::Tensor x = inputs[layer][lesson].detach().requires_grad_(true);
      std::vector<torch::Tensor> leaves{x};
      for (const Scaled& linear : scaled) leaves.push_back(linear.factors);
      // An expert that no token chose has no part in the graph.
      slopes[lesson] = torch::autograd::grad({layers_[layer].forward(x)}, leaves, {hidden[lesson]}, false,
                                             false, /*allow_unused=*/true);
      hidden[lesson] = slopes[lesson][0];
    });
    for (const std::vector<torch::Tensor>& of_lesson : slopes)
      for (size_t i = 0; i < scaled.size(); ++i)
        if (of_lesson[i + 1].defined()) (*gradients)[first + i] += of_lesson[i + 1] * (scaled[i].scale / 16);
    unload(layer);
    inputs.pop_back();
  }
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
