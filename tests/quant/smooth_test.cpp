// SmoothQuant and its search: scales by the formula, functions that stay, statistics that follow.
#include "quant/transforms/smooth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "quant/layer_moments.h"
#include "quant/pipeline.h"
#include "quant/reference.h"
#include "quant/transforms/channel_order.h"
#include "support/shared.h"

namespace quatrain {
namespace {

constexpr Site kSites[] = {Site::Qkv, Site::Output, Site::GateUp, Site::Down};
const std::vector<int32_t> kTokens = {106, 88, 57, 67, 120, 200, 0, 85, 61, 19, 74, 171, 185, 169, 266};

double relative(const torch::Tensor& a, const torch::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST(Smoothing, ScaleFollowsTheFormula) {
  const torch::Tensor x = torch::tensor({4.0f, 9.0f, 0.0f, 1.0f}),
                      w = torch::tensor({1.0f, 4.0f, 2.0f, 0.0f});
  const torch::Tensor half = smoothing_scale(x, w, 0.5);
  EXPECT_FLOAT_EQ(half[0].item<float>(), 2);
  EXPECT_FLOAT_EQ(half[1].item<float>(), 1.5f);
  EXPECT_EQ(half[2].item<float>(), 1);                      // no token reached it
  EXPECT_FLOAT_EQ(half[3].item<float>(), std::sqrt(1e5f));  // a weight of 0 counts as 1e-5
  EXPECT_FLOAT_EQ(smoothing_scale(x, w, 1)[1].item<float>(), 9);
  EXPECT_FLOAT_EQ(smoothing_scale(x, w, 0)[1].item<float>(), 0.25f);
  EXPECT_FLOAT_EQ(smoothing_scale(1e-9 * x, w, 1)[0].item<float>(), 1e-5f);
}

TEST(Smoothing, SearchTakesTheLeastErrorAndTheSmallerAlpha) {
  EXPECT_DOUBLE_EQ(search_alpha([](double a) { return std::fabs(a - 0.62); }), 0.60);
  EXPECT_DOUBLE_EQ(search_alpha([](double) { return 1.0; }), 0.30);
  EXPECT_DOUBLE_EQ(search_alpha([](double a) { return -a; }), 0.95);
  EXPECT_DOUBLE_EQ(search_alpha([](double) { return std::nan(""); }), 0.30);
}

class Smoothed : public testing::TestWithParam<const char*> {};

// All four sites, value channels in another order: logits move by two summation orders of FP32 only.
TEST_P(Smoothed, KeepsItsLogits) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP();
  const c10::InferenceMode inference;
  const fs::path path = *shared / "fixtures" / "tiny-models" / GetParam();
  const auto source = open_weight_source(path);
  const ModelConfig& config = source->config();
  torch::Tensor x =
      source->embedding().index_select(0, torch::tensor(kTokens, torch::kInt).to(torch::kLong)) *
      config.embedding_scale;
  for (int64_t index = 0; index < config.layers; ++index) {
    DecoderLayer layer(*source, index);
    LayerInputs inputs({}, 0, 0);
    LayerHooks hooks;
    hooks.linear_input = [&](Site site, int64_t, const torch::Tensor& input) { inputs.add(site, input); };
    layer.forward(x, hooks);
    for (const Site site : kSites) {
      const torch::Tensor scale = site_scale(layer, config, site, inputs.at(site), 0.5);
      smooth(layer, config, site, scale);
      inputs.divide(site, site == Site::Output ? spread_heads(scale, config) : scale);
      // With alpha = 1/2 inputs and weights share the range evenly. (At o the largest of a group's query
      // heads.)
      torch::Tensor largest = inputs.at(site).largest;
      if (site == Site::Output) largest = pooled_heads(largest, config);
      EXPECT_LT(relative(largest, largest_weights(layer, config, site)), 1e-5);
    }
    const torch::Tensor order = value_order(inputs.sensitivity(Site::Output), config);
    permute_values(layer, config, order);
    x = layer.forward(x);
  }
  x = rms_norm(x, source->plain("model.norm.weight"), config);
  const torch::Tensor logits = source->head().product(x);
  const std::vector<float> exact = ReferenceModel::load(path)->logits(kTokens);
  EXPECT_LT(relative(logits, torch::tensor(exact).reshape(logits.sizes())), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Smoothing, Smoothed,
                         testing::Values("llama-gqa", "llama-tied-576", "qwen2-bias", "qwen3-qknorm",
                                         "gemma3-text"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// divide(), turn() and permute() leave what the changed inputs would have given.
TEST(LayerInputs, FollowTheTransforms) {
  torch::manual_seed(4);
  const torch::Tensor x = torch::randn({30, 8}), y = torch::randn({20, 8});
  const torch::Tensor scale = torch::rand({8}) + 0.5, order = torch::randperm(8, torch::kLong);
  const torch::Tensor blocks = torch::randn({2, 4, 4});
  for (const bool mixed : {false, true}) {
    const auto added = [&](const auto& change) {
      LayerInputs inputs({mixed, mixed, mixed, mixed}, 3, 7);
      for (const torch::Tensor& rows : {x, y}) inputs.add(Site::Down, change(rows));
      return inputs;
    };
    LayerInputs inputs = added([](const torch::Tensor& rows) { return rows; });
    EXPECT_EQ(inputs.at(Site::Down).rows.size(), 2u);
    inputs.divide(Site::Down, scale);
    inputs.permute(Site::Down, order);
    const auto changed = [&](const torch::Tensor& rows) { return (rows / scale).index_select(1, order); };
    LayerInputs expected = added(changed);
    EXPECT_LT(relative(inputs.sensitivity(Site::Down), expected.sensitivity(Site::Down)), 1e-6);
    EXPECT_LT(relative(inputs.at(Site::Down).largest, expected.at(Site::Down).largest), 1e-6);
    EXPECT_LT(relative(inputs.at(Site::Down).rows[1], expected.at(Site::Down).rows[1]), 1e-6);
    if (!mixed) {
      EXPECT_THROW(inputs.turn(Site::Down, blocks), Error);
      continue;
    }
    inputs.turn(Site::Down, blocks);
    expected = added([&](const torch::Tensor& rows) {
      return changed(rows).reshape({-1, 2, 4}).transpose(0, 1).bmm(blocks).transpose(0, 1).reshape({-1, 8});
    });
    EXPECT_LT(relative(inputs.sensitivity(Site::Down), expected.sensitivity(Site::Down)), 1e-5);
    EXPECT_LT(relative(inputs.at(Site::Down).rows[0], expected.at(Site::Down).rows[0]), 1e-5);
  }
}

}  // namespace
}  // namespace quatrain
