#include "quant/refine/refine.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "quant/math_threads.h"
#include "quant/refine/rewrite.h"
#include "quant/refine/student.h"
#include "quant/sample_work.h"

namespace quatrain {
namespace {

constexpr double kFirstMoment = 0.9, kSecondMoment = 0.95;  // of Adam; short runs want the shorter memory
constexpr int64_t kWarmUp = 8;                              // steps

// What the original model predicts from: hidden states behind its final norm, one layer resident at a time.
struct Teacher {
  ReferenceLinear head;
  std::vector<torch::Tensor> hidden;  // of each sample, FP32 [tokens, hidden]
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
      teacher.hidden.push_back(embedding.index_select(0, torch::tensor(ids, torch::kInt).to(torch::kLong)) *
                               config.embedding_scale);
  }
  Progress progress("layers of the original model", config.layers);
  for (int64_t index = 0; index < config.layers; ++index) {
    const DecoderLayer layer(source, index);
    work.each(samples.size(), [&](size_t sample, const InOrder&) {
      teacher.hidden[sample] = layer.forward(teacher.hidden[sample]);
    });
    progress.update(index + 1);
  }
  const torch::Tensor norm = source.plain("model.norm.weight");
  for (torch::Tensor& x : teacher.hidden) x = rms_norm(x, norm, config);
  teacher.head = source.head();
  return teacher;
}

double rate_at(int64_t step, int64_t steps, double rate) {
  const double progress = static_cast<double>(step) / static_cast<double>(steps);
  const double warm = std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(kWarmUp));
  return rate * warm * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace

Json refine(const std::shared_ptr<const Checkpoint>& original, const fs::path& source, const Recipe& recipe,
            const std::vector<std::vector<int32_t>>& samples, const fs::path& output, int threads) {
  ThreadPool pool(threads);
  at::set_num_threads(pool.threads());
  const Recipe::Refine& settings = recipe.refine;
  const auto steps = std::min<int64_t>(settings.samples, std::ssize(samples) - 1);
  std::vector<std::vector<int32_t>> cut(samples.begin(), samples.begin() + steps + 1);
  for (std::vector<int32_t>& ids : cut)
    ids.resize(std::min(ids.size(), static_cast<size_t>(settings.length)));

  const Teacher teacher = run_teacher(*checkpoint_weight_source(original), cut, pool);
  Student student(source);
  const auto held_out = static_cast<size_t>(steps);
  const auto divergence = [&](size_t sample, bool learn) {
    const double value = student.divergence(cut[sample], teacher.hidden[sample], teacher.head, learn);
    require(std::isfinite(value), "{}: refinement: the divergence of sample {} is not finite",
            original->path().string(), sample);
    return value;
  };
  const double before = divergence(held_out, false);
  torch::optim::Adam adam(student.parameters(),
                          torch::optim::AdamOptions(settings.rate).betas({kFirstMoment, kSecondMoment}));
  Progress progress("refinement steps", steps);
  Json losses = Json::array();
  for (int64_t step = 0; step < steps; ++step) {
    static_cast<torch::optim::AdamOptions&>(adam.param_groups()[0].options())
        .lr(rate_at(step, steps, settings.rate));
    adam.zero_grad();
    losses.push_back(divergence(static_cast<size_t>(step), true));
    adam.step();
    progress.update(step + 1, fmt::format("divergence {:.4f}", losses.back().get<double>()));
  }
  const double after = divergence(held_out, false);
  const bool better = after < before;
  log_info("refinement: divergence of the sample held out {:.4f} -> {:.4f}{}", before, after,
           better ? "" : ", the scales stay as they were");
  Json report = Json::parse(read_file(source / "quantization_report.json"));
  report["refine"] = {{"samples", steps},
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
