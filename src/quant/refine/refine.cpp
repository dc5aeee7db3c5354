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
#include "quant/stopwatch.h"

namespace quatrain {
namespace {

constexpr double kFirstMoment = 0.9, kSecondMoment = 0.95;  // of Adam; short runs want the shorter memory
constexpr int64_t kWarmUp = 2;                              // steps

// What the original model predicts from: hidden states behind its final norm, one layer resident at a time.
struct Teacher {
  ReferenceLinear head;
  std::vector<Lesson> lessons;  // a batch each
};

Teacher run_teacher(const WeightSource& source, const SampleBatches& batches, ThreadPool& pool,
                    torch::Device device) {
  const OneMathThread one_thread_a_sample;
  const SampleWork work(pool, {}, device);
  const ModelConfig& config = source.config();
  Teacher teacher;
  {
    const torch::Tensor embedding = source.embedding();
    for (const std::vector<int32_t>& ids : batches.ids)
      teacher.lessons.push_back({ids, embedded(embedding, ids) * config.embedding_scale});
  }
  Progress progress("layers of the original model", config.layers);
  for (int64_t index = 0; index < config.layers; ++index) {
    DecoderLayer layer(source, index);
    layer.sequence = batches.sequence;
    work.each(batches.ids.size(), [&](size_t sample, const InOrder&) {
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

// Trains the student in place, `batch` lessons a step; their mean divergence before every step. What stays is
// the mean of the parameters over the second half of the steps, which lies nearer to the minimum than the
// last of them (Polyak and Juditsky, 1992).
std::vector<double> train(Student& student, std::span<const Lesson> lessons, const ReferenceLinear& head,
                          size_t batch, const Recipe::Refine& settings, ThreadPool& pool) {
  const Student::Parameters parameters = student.parameters();
  std::vector<torch::Tensor> all = parameters.scales, mean;
  all.insert(all.end(), parameters.norms.begin(), parameters.norms.end());
  for (const torch::Tensor& parameter : all) mean.push_back(torch::zeros_like(parameter));
  const auto options = torch::optim::AdamOptions().betas({kFirstMoment, kSecondMoment}).eps(1e-12);
  torch::optim::Adam adam({{parameters.scales, std::make_unique<torch::optim::AdamOptions>(options)},
                           {parameters.norms, std::make_unique<torch::optim::AdamOptions>(options)}});
  const auto set_rate = [&](size_t group, double rate) {
    static_cast<torch::optim::AdamOptions&>(adam.param_groups()[group].options()).lr(rate);
  };
  const auto steps = static_cast<int64_t>(lessons.size() / batch), averaged = steps - steps / 2;
  Progress progress("refinement steps", steps);
  Student::Parameters gradients;
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    losses.push_back(mean_of(student.divergence(lessons.subspan(static_cast<size_t>(step) * batch, batch),
                                                head, pool, &gradients)));
    require(std::isfinite(losses.back()), "refinement: the divergence of step {} is not finite", step + 1);
    for (size_t i = 0; i < gradients.scales.size(); ++i)
      parameters.scales[i].mutable_grad() = gradients.scales[i];
    for (size_t i = 0; i < gradients.norms.size(); ++i)
      parameters.norms[i].mutable_grad() = gradients.norms[i];
    set_rate(0, rate_at(step, steps, settings.rate));
    set_rate(1, rate_at(step, steps, settings.norm_rate));
    adam.step();
    if (step >= steps - averaged)
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += all[i] / static_cast<double>(averaged);
    progress.update(step + 1, fmt::format("divergence {:.4f}", losses.back()));
  }
  for (size_t i = 0; i < mean.size(); ++i) all[i].copy_(mean[i]);
  return losses;
}

}  // namespace

Json refine(const std::shared_ptr<const Checkpoint>& original, const fs::path& source, const Recipe& recipe,
            const std::vector<std::vector<int32_t>>& samples, const fs::path& output, int threads,
            torch::Device device) {
  const Stopwatch watch;
  ThreadPool pool(threads);
  keep_freed_memory();
  const Recipe::Refine& settings = recipe.refine;
  const int64_t trained = std::min<int64_t>(settings.samples, std::ssize(samples) - kRefinementBatch) /
                          kRefinementBatch * kRefinementBatch;
  std::vector<std::vector<int32_t>> cut(samples.begin(), samples.begin() + trained + kRefinementBatch);
  for (std::vector<int32_t>& ids : cut)
    ids.resize(std::min(ids.size(), static_cast<size_t>(settings.length)));

  // On a CPU a thread takes a sample, on a GPU the samples of a step are one lesson.
  const SampleBatches batches = batched(cut, device.is_cpu() ? 1 : kRefinementBatch);
  const size_t batch = kRefinementBatch / (cut.size() / batches.ids.size());
  const Teacher teacher = run_teacher(*checkpoint_weight_source(original, device), batches, pool, device);
  Student student(source, fastest_product_type(device), device);
  student.set_sequence(batches.sequence);
  const std::span<const Lesson> lessons = teacher.lessons;
  const auto held_out = [&] { return mean_of(student.divergence(lessons.last(batch), teacher.head, pool)); };
  const double before = held_out();
  const std::vector<double> losses =
      train(student, lessons.first(lessons.size() - batch), teacher.head, batch, settings, pool);
  const double after = held_out();
  const bool better = after < before;
  log_info("refinement: divergence of the samples held out {:.4f} -> {:.4f}{}", before, after,
           better ? "" : ", scales and norms stay as they were");
  Json report = Json::parse(read_file(source / "quantization_report.json"));
  report["refine"] = {{"samples", trained},    {"length", settings.length},
                      {"rate", settings.rate}, {"norm_rate", settings.norm_rate},
                      {"divergence", losses},  {"held_out", {{"before", before}, {"after", after}}},
                      {"kept", better}};
  RefinedValues refined;
  if (better) refined.scales = student.scales();
  if (better && settings.norm_rate > 0) refined.norms = student.norms();
  rewrite(source, refined, recipe.to_toml(), report, output);
  report["refine"]["seconds"] = watch.seconds();
  return report;
}

}  // namespace quatrain
