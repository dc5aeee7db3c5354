#include "quant/refine/refine.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <span>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "quant/math_threads.h"
#include "quant/reference/device.h"
#include "quant/refine/rewrite.h"
#include "quant/refine/student.h"
#include "quant/sample_work.h"

namespace quatrain {
namespace {

constexpr double kFirstMoment = 0.9, kSecondMoment = 0.95;  // of Adam; short runs want the shorter memory
constexpr int64_t kWarmUp = 2;                              // steps

// What the original model predicts from: hidden states behind its final norm, one layer resident at a time.
struct Teacher {
  ReferenceLinear head;
  std::vector<Lesson> lessons;  // a sample each
};

Teacher run_teacher(const WeightSource& source, const std::vector<std::vector<int32_t>>& samples,
                    ThreadPool& pool) {
  const OneMathThread one_thread_a_sample;
  const SampleWork work(pool, {});
  const ModelConfig& config = source.config();
  Teacher teacher;
  {
    const torch::Tensor embedding = source.embedding();
    for (const std::vector<int32_t>& ids : samples)
      teacher.lessons.push_back({ids, embedded(embedding, ids) * config.embedding_scale});
  }
  Progress progress("layers of the original model", config.layers);
  for (int64_t index = 0; index < config.layers; ++index) {
    const DecoderLayer layer(source, index);
    work.each(samples.size(), [&](size_t sample, const InOrder&) {
      torch::Tensor& hidden = teacher.lessons[sample].teacher;
      hidden = layer.forward(hidden);
    });
    progress.update(index + 1);
  }
  const torch::Tensor norm = source.plain("model.norm.weight");
  for (Lesson& lesson : teacher.lessons) lesson.teacher = rms_norm(lesson.teacher, norm, config);
  teacher.head = source.head();
  return teacher;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double rate_at(int64_t step, int64_t steps, double rate) {
  const double progress = static_cast<double>(step) / static_cast<double>(steps);
  const double warm = std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(kWarmUp));
  return rate * warm * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

// Trains the student in place; the mean divergence of every step's lessons, before the step. What stays is
// the mean of the parameters over the second half of the steps, which lies nearer to the minimum than the
// last of them (Polyak and Juditsky, 1992).
std::vector<double> train(Student& student, std::span<const Lesson> lessons, const ReferenceLinear& head,
                          double rate, ThreadPool& pool) {
  const std::vector<torch::Tensor> parameters = student.parameters();
  std::vector<torch::Tensor> gradients, mean;
  for (const torch::Tensor& parameter : parameters) mean.push_back(torch::zeros_like(parameter));
  torch::optim::Adam adam(parameters,
                          torch::optim::AdamOptions(rate).betas({kFirstMoment, kSecondMoment}).eps(1e-12));
  const int64_t steps = std::ssize(lessons) / kRefinementBatch, averaged = steps - steps / 2;
  Progress progress("refinement steps", steps);
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    const std::vector<double> batch =
        student.divergence(lessons.subspan(static_cast<size_t>(step * kRefinementBatch), kRefinementBatch),
                           head, pool, &gradients);
    losses.push_back(mean_of(batch));
    require(std::isfinite(losses.back()), "refinement: the divergence of step {} is not finite", step + 1);
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradients[i];
    static_cast<torch::optim::AdamOptions&>(adam.param_groups()[0].options()).lr(rate_at(step, steps, rate));
    adam.step();
    if (step >= steps - averaged)
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += parameters[i] / static_cast<double>(averaged);
    progress.update(step + 1, fmt::format("divergence {:.4f}", losses.back()));
  }
  for (size_t i = 0; i < mean.size(); ++i) parameters[i].copy_(mean[i]);
  return losses;
}

}  // namespace

Json refine(const std::shared_ptr<const Checkpoint>& original, const fs::path& source, const Recipe& recipe,
            const std::vector<std::vector<int32_t>>& samples, const fs::path& output, int threads,
            torch::Device device) {
  ThreadPool pool(threads);
  keep_freed_memory();
  const Recipe::Refine& settings = recipe.refine;
  const int64_t trained = std::min<int64_t>(settings.samples, std::ssize(samples) - kRefinementBatch) /
                          kRefinementBatch * kRefinementBatch;
  std::vector<std::vector<int32_t>> cut(samples.begin(), samples.begin() + trained + kRefinementBatch);
  for (std::vector<int32_t>& ids : cut)
    ids.resize(std::min(ids.size(), static_cast<size_t>(settings.length)));

  const Teacher teacher = run_teacher(*checkpoint_weight_source(original, device), cut, pool);
  Student student(source, fastest_product_type(device), device);
  const std::span<const Lesson> lessons = teacher.lessons;
  const auto held_out = [&] {
    return mean_of(student.divergence(lessons.last(kRefinementBatch), teacher.head, pool));
  };
  const double before = held_out();
  const std::vector<double> losses =
      train(student, lessons.first(static_cast<size_t>(trained)), teacher.head, settings.rate, pool);
  const double after = held_out();
  const bool better = after < before;
  log_info("refinement: divergence of the samples held out {:.4f} -> {:.4f}{}", before, after,
           better ? "" : ", the scales stay as they were");
  Json report = Json::parse(read_file(source / "quantization_report.json"));
  report["refine"] = {{"samples", trained},
                      {"length", settings.length},
                      {"rate", settings.rate},
                      {"divergence", losses},
                      {"held_out", {{"before", before}, {"after", after}}},
                      {"kept", better}};
  rewrite_scales(source, better ? student.scales() : std::map<std::string, std::vector<float>>{},
                 recipe.to_toml(), report, output);
  return report;
}

}  // namespace quatrain
