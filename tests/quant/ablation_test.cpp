// OffQ's ablations and DynamicPTQ's rules as recipe fields.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "model/checkpoint.h"
#include "quant/activations/layers8.h"
#include "quant/pipeline.h"
#include "quant/reference.h"
#include "quant/transforms/balance.h"
#include "quant/transforms/top1_pca.h"
#include "support/shared.h"

namespace quatrain {
namespace {

std::string refusal(const std::vector<std::string>& overrides) {
  try {
    parse_recipe("name = 'a'", "r.toml", overrides);
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << fmt::format("{}", fmt::join(overrides, " "));
  return "";
}

TEST(Ablations, ZigzagDealsOneAGroup) {
  const torch::Tensor values = torch::tensor({1.0, 2.0, 3.0, 4.0, 50.0, 60.0});
  EXPECT_TRUE(values.index_select(0, offset_grouping(values, 3, true))
                  .equal(torch::tensor({60.0, 1.0, 3.0, 50.0, 2.0, 4.0})));
}

TEST(Ablations, RandomRotationHasAConstantRow) {
  const torch::Tensor q = offset_rotation(16, 3, false);
  EXPECT_LT((q[0] - 0.25).abs().max().item<double>(), 1e-12);
  EXPECT_LT((q.matmul(q.t()) - torch::eye(16, torch::kDouble)).abs().max().item<double>(), 1e-12);
  EXPECT_GT((q[1].abs() - 0.25).abs().max().item<double>(), 0.01);
}

// An outlier token in three channels: its first coordinate takes everything when it alone gives the basis,
// much less of it when every token does.
TEST(Ablations, TopOnePcaGathersTheOutlier) {
  torch::manual_seed(1);
  torch::Tensor tokens =
      torch::randn({400, 32}, torch::kDouble) * torch::linspace(3, 0.5, 32, torch::kDouble);
  torch::Tensor outlier = 0.1 * torch::randn({1, 32}, torch::kDouble);
  outlier[0][5] = 8;
  outlier[0][17] = -7;
  outlier[0][29] = 6;
  const torch::Tensor all = torch::cat({tokens, outlier});
  const auto largest = [&](const torch::Tensor& moments, const torch::Tensor& rows) {
    const torch::Tensor q = offset_pca_rotation(moments, rows, 32, 0);
    EXPECT_LT((q.matmul(q.t()) - torch::eye(32, torch::kDouble)).abs().max().item<double>(), 1e-10);
    const torch::Tensor turned = outlier.matmul(q);
    return (turned.amax() - turned.amin()).item<double>();  // what an asymmetric quantiser must span
  };
  const double top1 = largest(outlier.t().matmul(outlier), outlier);
  const double pooled = largest(all.t().matmul(all) / all.size(0), {});
  EXPECT_LT(top1, 0.5 * pooled);
}

TEST(Ablations, ContradictionsAreNamed) {
  for (const char* field : {"transform.pca=all", "transform.rotation=random-constant-row"})
    EXPECT_NE(refusal({field}).find("top1-pca-offset"), std::string::npos);
  EXPECT_NE(refusal({"transform.grouping=zigzag"}).find("transform.grouping"), std::string::npos);
  EXPECT_NE(refusal({"transform.pca=some"}).find("\"all\""), std::string::npos);
  EXPECT_NE(refusal({"transform.alpha=1.5", "transform.inputs=smooth"}).find("transform.alpha"),
            std::string::npos);
  EXPECT_NE(refusal({"transform.alpha=0.7"}).find("smooth"), std::string::npos);
  EXPECT_NE(refusal({"transform.value=smooth", "transform.output=hadamard"}).find("transform.output"),
            std::string::npos);
  EXPECT_NE(refusal({"residual.scope=global"}).find("delta-hessian"), std::string::npos);
  EXPECT_NE(refusal({"residual.sort=true", "transform.down=hadamard"}).find("residual.sort"),
            std::string::npos);
  for (const char* bad : {"rank:0", "rank:", "rank:01", "rank:-1", "rank:2,3", "rule2"})
    EXPECT_NE(refusal({std::string("activations.layers8=\"") + bad + "\""}).find("rank:N"), std::string::npos)
        << bad;
  EXPECT_THROW(parse_recipe("name = 'a'", "r", {"activations.layers8=rule"}).layers_with_8_bits(4), Error);
}

class Rules : public testing::Test {
 protected:
  void SetUp() override {
    const auto shared = shared_dir();
    if (!shared) GTEST_SKIP();
    model_ = *shared / "fixtures" / "tiny-models" / "llama-gqa";
    SplitMix64 random(3);
    for (std::vector<int32_t>& ids : samples_)
      for (int t = 0; t < 48; ++t) ids.push_back(static_cast<int32_t>(random.below(300)));
  }
  fs::path model_;
  std::vector<std::vector<int32_t>> samples_ = std::vector<std::vector<int32_t>>(4);
};

TEST_F(Rules, LayersAreMeasured) {
  const auto checkpoint = open_checkpoint(model_);
  const auto jumps = measure_jumps(model_, samples_, true);
  const auto chosen = [&](const std::string& rule) {
    const Recipe recipe = choose_layers8(
        *checkpoint, load_recipe("dynamicptq-quarot", {"activations.layers8=" + rule}), samples_);
    EXPECT_FALSE(recipe.measures_layers8());
    return recipe.layers_with_8_bits(checkpoint->config().layers);
  };
  EXPECT_EQ(chosen("rule"), layers_by_threshold(jumps));
  EXPECT_EQ(chosen("rank:1"), layers_by_rank(jumps, 1));
  EXPECT_EQ(chosen("[1]"), (std::vector<int64_t>{1}));
  EXPECT_THROW(chosen("rank:100"), Error);
}

// Every variant is the same model before quantisation: 8-bit weights alone move it by about 0.1.
TEST_F(Rules, AblationsKeepTheModel) {
  const std::vector<float> exact = ReferenceModel::load(model_)->logits(samples_[0]);
  const fs::path out = fs::path(testing::TempDir()) / "quatrain_ablations";
  for (const char* field : {"transform.pca=all", "transform.grouping=zigzag",
                            "transform.rotation=random-constant-row", "transform.residual_group=32"}) {
    fs::remove_all(out);
    QuantizeOptions options;
    options.threads = 2;
    options.samples = samples_;
    quantize(model_,
             load_recipe("offq-rtn",
                         {field, "weights.bits=8", "weights.group=16", "weights.clip=none",
                          "activations.bits=16", "kv.bits=16", "embedding.bits=16", "lm_head.bits=16"}),
             out, options);
    const std::vector<float> now = ReferenceModel::load(out)->logits(samples_[0]);
    const torch::Tensor a = torch::tensor(now), b = torch::tensor(exact);
    EXPECT_LT(((a - b).norm() / b.norm()).item<double>(), 0.2) << field;
  }
  fs::remove_all(out);
}

}  // namespace
}  // namespace quatrain
