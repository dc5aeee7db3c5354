#include "quant/activations/jump_ratio.h"

#include <torch/torch.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "quant/math_threads.h"
#include "quant/reference/decoder_layer.h"
#include "quant/sample_work.h"
#include "quant/transforms/merged_source.h"
#include "quant/transforms/rotation.h"

namespace quatrain {
namespace {

constexpr double kEpsilon = 1e-8;
constexpr double kJumpThreshold = 0.9, kSnrThreshold = 13.5;
constexpr int64_t kRankedLayers = 4;
constexpr double kBarUnit = 0.05;  // of a jump ratio
constexpr int64_t kLongestBar = 60;
constexpr uint64_t kRotationSeed = 0;

// Sum over tokens, in dB.
double snr(const torch::Tensor& x, const torch::Tensor& updated, int bits) {
  const torch::Tensor range = updated.amax(1, true) - updated.amin(1, true);
  const torch::Tensor step = (range / ((1 << bits) - 1)).clamp_min(1e-30);
  const torch::Tensor noise = (torch::round(updated / step) * step - updated).square().sum(1);
  return (10 * torch::log10(x.square().sum(1) / (noise + kEpsilon))).sum().item<double>();
}

std::string numbers(const std::vector<int64_t>& layers) {
  return layers.empty() ? "none" : fmt::format("{}", fmt::join(layers, ", "));
}

}  // namespace

std::vector<LayerJump> measure_jumps(const fs::path& model, const std::vector<std::vector<int32_t>>& samples,
                                     bool rotate, int threads) {
  return measure_jumps(open_weight_source(model), model.string(), samples, rotate, threads);
}

std::vector<LayerJump> measure_jumps(std::unique_ptr<WeightSource> source, const std::string& where,
                                     const std::vector<std::vector<int32_t>>& samples, bool rotate,
                                     int threads) {
  const c10::InferenceMode inference;
  const OneMathThread one_math_thread;
  ThreadPool pool(threads);
  const SampleWork work(pool, {});
  if (rotate && !source->config().sandwich_norms) {
    const int64_t width = source->config().hidden;
    source =
        merge_rotation(std::move(source), hadamard_rotation(width, hadamard_order(width), kRotationSeed));
  }
  const ModelConfig& config = source->config();
  std::vector<torch::Tensor> hidden;
  int64_t tokens = 0;
  {
    const torch::Tensor embedding = source->embedding();
    for (const std::vector<int32_t>& ids : samples) {
      const torch::Tensor index = torch::tensor(ids, torch::kInt).to(torch::kLong);
      require(index.min().item<int64_t>() >= 0 && index.max().item<int64_t>() < config.vocabulary,
              "{}: a token is outside the vocabulary of {}", where, config.vocabulary);
      hidden.push_back(embedding.index_select(0, index).to(torch::kDouble) * config.embedding_scale);
      tokens += index.size(0);
    }
  }
  std::vector<LayerJump> jumps(static_cast<size_t>(config.layers));
  Progress progress("layers", config.layers);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const DecoderLayer decoder(*source, layer);
    LayerJump& jump = jumps[static_cast<size_t>(layer)];
    work.each(hidden.size(), [&](size_t s, const InOrder& in_order) {
      torch::Tensor& x = hidden[s];
      const torch::Tensor updated = decoder.forward(x.to(torch::kFloat)).to(torch::kDouble);
      const auto ratio = ((updated - x).norm(2, 1) / (x.norm(2, 1) + kEpsilon)).sum().item<double>();
      const double snr4 = snr(x, updated, 4), snr8 = snr(x, updated, 8);
      in_order([&] {
        jump.jump_ratio += ratio;
        jump.snr4 += snr4;
        jump.snr8 += snr8;
      });
      x = updated;
    });
    for (double* value : {&jump.jump_ratio, &jump.snr4, &jump.snr8}) *value /= static_cast<double>(tokens);
    progress.update(layer + 1);
  }
  return jumps;
}

std::vector<int64_t> layers_by_threshold(const std::vector<LayerJump>& jumps) {
  std::vector<int64_t> layers;
  for (size_t i = 0; i < jumps.size(); ++i)
    if (jumps[i].jump_ratio > kJumpThreshold && jumps[i].snr4 < kSnrThreshold)
      layers.push_back(static_cast<int64_t>(i));
  return layers;
}

std::vector<int64_t> layers_by_rank(const std::vector<LayerJump>& jumps, int64_t count) {
  std::vector<int64_t> order(jumps.size()), rank(jumps.size(), 0);
  const auto add_ranks = [&](auto worse) {
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return worse(jumps[static_cast<size_t>(a)], jumps[static_cast<size_t>(b)]);
    });
    for (size_t i = 0; i < order.size(); ++i) rank[static_cast<size_t>(order[i])] += static_cast<int64_t>(i);
  };
  add_ranks([](const LayerJump& a, const LayerJump& b) { return a.jump_ratio > b.jump_ratio; });
  add_ranks([](const LayerJump& a, const LayerJump& b) { return a.snr4 < b.snr4; });
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return rank[static_cast<size_t>(a)] < rank[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<size_t>(count)));
  std::sort(order.begin(), order.end());
  return order;
}

std::string jump_text(const std::vector<LayerJump>& jumps) {
  std::string text = fmt::format("{:>5} {:>10} {:>8} {:>8}\n", "layer", "jump ratio", "SNR4 dB", "SNR8 dB");
  for (size_t i = 0; i < jumps.size(); ++i) {
    const auto bar = std::min(kLongestBar, static_cast<int64_t>(jumps[i].jump_ratio / kBarUnit));
    text += fmt::format("{:>5} {:>10.3f} {:>8.2f} {:>8.2f}  {}\n", i, jumps[i].jump_ratio, jumps[i].snr4,
                        jumps[i].snr8, std::string(static_cast<size_t>(bar), '#'));
  }
  return text + fmt::format("8-bit layers by threshold (jump ratio > {}, SNR4 < {} dB): {}\nby rank: {}\n",
                            kJumpThreshold, kSnrThreshold, numbers(layers_by_threshold(jumps)),
                            numbers(layers_by_rank(jumps, kRankedLayers)));
}

Json jump_json(const std::vector<LayerJump>& jumps) {
  Json layers = Json::array();
  for (size_t i = 0; i < jumps.size(); ++i)
    layers.push_back({{"layer", i},
                      {"jump_ratio", jumps[i].jump_ratio},
                      {"snr4_db", jumps[i].snr4},
                      {"snr8_db", jumps[i].snr8}});
  return {{"layers", layers},
          {"by_threshold", layers_by_threshold(jumps)},
          {"by_rank", layers_by_rank(jumps, kRankedLayers)}};
}

}  // namespace quatrain
