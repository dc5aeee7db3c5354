// MosaicQuant: the theorems that its scores rest on, and its recipes on tiny models.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "checkpoint/artifact.h"
#include "quant/pipeline.h"
#include "quant/reference.h"
#include "quant/residual/score.h"
#include "quant/residual/select.h"
#include "quant/residual/study.h"
#include "quant/weights/gptq.h"
#include "support/tiny_models.h"

namespace quatrain {
namespace {

// A matrix of 48 x 32 (six blocks of 16 x 16), rounded by rows, and inputs that are correlated.
struct Toy {
  torch::Tensor weight, steps, error4, error8, moments;

  Toy() {
    torch::manual_seed(2);
    weight = torch::randn({48, 32}) * torch::exp(torch::randn({48, 1}));
    steps = (weight.abs().amax(1, true) / 7).expand_as(weight).contiguous();
    error4 = weight - torch::round(weight / steps).clamp(-8, 7) * steps;
    error8 = weight - torch::round(16 * weight / steps).clamp(-128, 127) * steps / 16;
    const torch::Tensor x =
        torch::randn({200, 32}).matmul(torch::randn({32, 32})) * torch::exp(torch::randn({32}));
    moments = (x.t().matmul(x) * (2.0 / 200)).to(torch::kDouble);
  }
  // sum over rows of e H e^T with the blocks of `chosen` (bit by number) at 8 bits.
  double distortion(unsigned chosen, const torch::Tensor& hessian) const {
    torch::Tensor e = error4.clone();
    for (int64_t block = 0; block < 6; ++block)
      if (chosen >> block & 1) {
        const int64_t row = block / 2 * 16, column = block % 2 * 16;
        e.slice(0, row, row + 16)
            .slice(1, column, column + 16)
            .copy_(error8.slice(0, row, row + 16).slice(1, column, column + 16));
      }
    const torch::Tensor wide = e.to(torch::kDouble);
    return (wide.matmul(hessian) * wide).sum().item<double>();
  }
  std::vector<double> scores(const char* kind = "delta-hessian") const {
    return block_scores(kind, weight, steps, moments.diagonal(), 16);
  }
};

unsigned mask_of(const std::vector<int32_t>& blocks) {
  unsigned mask = 0;
  for (const int32_t block : blocks) mask |= 1u << block;
  return mask;
}

TEST(DeltaHessian, ScoresAddUp) {
  const Toy toy;
  const torch::Tensor diagonal = torch::diag(toy.moments.diagonal());
  double sum = 0;
  for (const double score : toy.scores()) sum += score;
  const double none = toy.distortion(0, diagonal);
  EXPECT_NEAR(sum, none - toy.distortion(63, diagonal), 1e-9 * none);
  for (int block = 0; block < 6; ++block)
    EXPECT_NEAR(toy.scores()[static_cast<size_t>(block)], none - toy.distortion(1u << block, diagonal),
                1e-9 * none);
}

// Theorem 4.1: the top K are optimal under the diagonal Hessian, and under the full one they miss the best
// choice by at most twice the bound |O|_2 (|R|^2 + |E_S|^2), O = H without its diagonal.
TEST(DeltaHessian, TopKIsOptimal) {
  const Toy toy;
  const torch::Tensor diagonal = torch::diag(toy.moments.diagonal());
  const torch::Tensor off = toy.moments - diagonal;
  const double spread = torch::linalg_eigvalsh(off).abs().max().item<double>();
  const double energy = toy.error4.to(torch::kDouble).square().sum().item<double>();
  for (int k = 1; k <= 5; ++k) {
    const unsigned chosen = mask_of(select_blocks(toy.scores(), k / 6.0));
    EXPECT_EQ(std::popcount(chosen), k);
    double best = 1e300, best_full = 1e300;
    for (unsigned mask = 0; mask < 64; ++mask)
      if (std::popcount(mask) <= k) {
        best = std::min(best, toy.distortion(mask, diagonal));
        best_full = std::min(best_full, toy.distortion(mask, toy.moments));
      }
    EXPECT_NEAR(toy.distortion(chosen, diagonal), best, 1e-9 * best);
    EXPECT_LE(toy.distortion(chosen, toy.moments) - best_full, 2 * spread * (energy + energy));
  }
}

// |R| <= s / 2, R nearly uniform there (rms 0.289 s), and the low nibble leaves 1 / 256 of its energy; so a
// block's score is nearly its rows' s^2 / 12 times its columns' h.
TEST(DeltaHessian, ResidualIsUniform) {
  torch::manual_seed(5);
  const torch::Tensor weight = torch::randn({256, 512}) * torch::exp(torch::randn({256, 1}));
  const torch::Tensor row = weight.abs().amax(1, true) / 7, steps = row.expand_as(weight).contiguous();
  const torch::Tensor error = weight - torch::round(weight / steps).clamp(-8, 7) * steps;
  const torch::Tensor fine = weight - torch::round(16 * weight / steps).clamp(-128, 127) * steps / 16;
  EXPECT_LE((error.abs() / steps).max().item<double>(), 0.5 + 1e-5);
  EXPECT_NEAR((error / steps).square().mean().sqrt().item<double>(), 1 / std::sqrt(12.0), 0.005);
  EXPECT_NEAR((fine.square().sum() / error.square().sum()).item<double>(), 1 / 256.0, 3e-4);
  const torch::Tensor h = torch::exp(torch::randn({512})).to(torch::kDouble);
  const std::vector<double> scores = block_scores("delta-hessian", weight, steps, h, 128);
  for (int64_t b = 0; b < 16 * 4; ++b) {
    const double rows = row.slice(0, b / 4 * 16, b / 4 * 16 + 16).square().sum().item<double>();
    const double columns = h.slice(0, b % 4 * 128, b % 4 * 128 + 128).sum().item<double>();
    EXPECT_NEAR(scores[static_cast<size_t>(b)] / (rows * columns / 12), 1, 0.25);
  }
}

// Round-to-nearest and GPTQ choose by the same scores; whole channels too.
TEST(DeltaHessian, WeightStagesChooseByIt) {
  const Toy toy;
  ThreadPool pool(2);
  const RowReader read = [&](int64_t begin, int64_t end) {
    const float* data = toy.weight.data_ptr<float>();
    return std::vector<float>(data + begin * 32, data + end * 32);
  };
  const torch::Tensor h = toy.moments.diagonal().to(torch::kFloat).contiguous();
  for (const char* kind : {"delta-hessian", "hessian-diagonal", "residual-norm", "weight-max"})
    for (const char* unit : {"block", "channel"}) {
      WeightFormat format;
      format.residual_block = 16;
      format.residual_budget = 0.3;
      format.residual_score = kind;
      format.residual_unit = unit;
      const std::vector<int32_t> expected = unit == std::string("block")
                                                ? select_blocks(toy.scores(kind), 0.3)
                                                : select_block_columns(toy.scores(kind), 2, 0.3);
      EXPECT_EQ(quantize_gptq("m", toy.weight, toy.moments, format, {}, {}).planes.residual_index, expected)
          << kind << unit;
      format.column_weight = std::vector<float>(h.data_ptr<float>(), h.data_ptr<float>() + 32);
      if (kind != std::string("residual-norm")) {  // takes no sensitivities
        EXPECT_EQ(quantize_rtn("m", 48, 32, read, format, pool).planes.residual_index, expected)
            << kind << unit;
      }
      format.selected = std::vector<int32_t>{1, 4};
      EXPECT_EQ(quantize_rtn("m", 48, 32, read, format, pool).planes.residual_index, *format.selected);
      EXPECT_EQ(quantize_gptq("m", toy.weight, toy.moments, format, {}, {}).planes.residual_index,
                *format.selected);
    }
}

TEST(Selection, WholeChannels) {
  // Columns sum to 5, 7, 6.
  const std::vector<double> scores = {5, 0, 3, 0, 7, 3};
  EXPECT_EQ(select_block_columns(scores, 3, 0.3), (std::vector<int32_t>{1, 4}));
  EXPECT_EQ(select_block_columns(scores, 3, 0.5), (std::vector<int32_t>{1, 2, 4, 5}));
  EXPECT_TRUE(select_block_columns(scores, 3, 0).empty());
}

TEST(Selection, GlobalBudgetGoesWhereItGivesMost) {
  const std::map<std::string, ScoredMatrix> matrices = {
      {"a", {{1, 8, 2}, 10}}, {"b", {{300, 100}, 1000}}, {"c", {{0, 5, -1, 0, 0}, 0}}};
  const auto chosen = choose_globally(matrices, 0.2);  // two of ten blocks
  EXPECT_EQ(chosen.at("a"), (std::vector<int32_t>{1}));
  EXPECT_EQ(chosen.at("b"), (std::vector<int32_t>{0}));
  EXPECT_TRUE(chosen.at("c").empty());
  size_t all = 0;
  for (const auto& [name, blocks] : choose_globally(matrices, 1)) all += blocks.size();
  EXPECT_EQ(all, 5u);  // nothing without a gain
}

class Mosaic : public TinyModels {
 protected:
  void SetUp() override {
    TinyModels::SetUp();
    SplitMix64 random(3);
    for (std::vector<int32_t>& ids : samples_)
      for (int t = 0; t < 48; ++t) ids.push_back(static_cast<int32_t>(random.below(300)));
  }

  Json run(const std::string& model, const std::string& recipe,
           const std::vector<std::string>& overrides = {}) {
    QuantizeOptions options;
    options.threads = 2;
    options.samples = samples_;
    fs::remove_all(directory_ / "out");
    return quantize(models_ / model, load_recipe(recipe, overrides), directory_ / "out", options);
  }
  double distance(const std::string& model) {
    const std::vector<float> now = ReferenceModel::load(directory_ / "out")->logits(samples_[0]),
                             exact = ReferenceModel::load(models_ / model)->logits(samples_[0]);
    double difference = 0, power = 0;
    for (size_t i = 0; i < now.size(); ++i) {
      difference += std::pow(static_cast<double>(now[i]) - exact[i], 2);
      power += std::pow(static_cast<double>(exact[i]), 2);
    }
    return std::sqrt(difference / power);
  }

  std::vector<std::vector<int32_t>> samples_ = std::vector<std::vector<int32_t>>(5);
};

TEST_F(Mosaic, TransformsAloneKeepTheModel) {
  for (const char* model : {"llama-gqa", "qwen2-bias", "qwen3-qknorm"})
    for (const char* recipe : {"smoothquant", "mosaicquant", "mosaicquant-quarot"}) {
      run(model, recipe,
          {"transform.alpha=0.5", "residual.budget=1", "weights.group=16", "activations.bits=16",
           "kv.bits=16", "embedding.bits=16", "lm_head.bits=16"});
      EXPECT_LT(distance(model), 0.2) << model << " " << recipe;  // 8-bit weights alone move it by about 0.1
    }
}

TEST_F(Mosaic, SearchesAlphaAndSpendsItsBudget) {
  const Json report = run("qwen2-bias", "mosaicquant", {"residual.block=16"});
  for (const Json& layer : report["layers"]) {
    ASSERT_EQ(layer["smoothing"].size(), 4u);
    for (const Json& site : layer["smoothing"]) {
      EXPECT_GE(site["alpha"].get<double>(), 0.3);
      EXPECT_LT(site["output_error"].get<double>(), 0.5);
    }
  }
  const ArtifactReader reader(directory_ / "out");
  const NibblePlanes down = reader.planes("model.layers.0.mlp.down_proj");
  const double blocks = static_cast<double>(down.block_rows() * down.block_columns());
  EXPECT_EQ(down.residual_index.size(), static_cast<size_t>(std::ceil(0.1 * blocks)));
  EXPECT_EQ(reader.tensors().find("model.layers.0.input_layernorm.weight")->type, "F32");
}

TEST_F(Mosaic, GlobalScopeSpendsTheSameBudgetOverTheModel) {
  const auto total = [&](const std::string& scope) {
    size_t blocks = 0;
    const Json report = run("llama-gqa", "mosaicquant",
                            {"transform.alpha=0.5", "residual.block=16", "residual.scope=" + scope});
    for (const Json& linear : report["linears"]) blocks += linear["residual_blocks"].get<size_t>();
    return blocks;
  };
  const auto global = total("global"), matrix = total("matrix");
  EXPECT_GT(global, 0u);
  EXPECT_LE(global, matrix);  // every matrix rounds its own budget up
  EXPECT_GE(static_cast<double>(global), 0.8 * static_cast<double>(matrix));
}

TEST_F(Mosaic, SortedChannelsAndWholeChannels) {
  run("qwen2-bias", "mosaicquant-channel",
      {"transform.alpha=0.5", "residual.budget=1", "weights.group=16", "activations.bits=16",
       "embedding.bits=16", "lm_head.bits=16"});
  EXPECT_LT(distance("qwen2-bias"), 0.2);
  run("qwen2-bias", "mosaicquant-channel", {"transform.alpha=0.5"});
  const NibblePlanes planes = ArtifactReader(directory_ / "out").planes("model.layers.1.mlp.down_proj");
  const int64_t columns = planes.block_columns();
  std::vector<int64_t> count(static_cast<size_t>(columns));
  for (const int32_t block : planes.residual_index) ++count[static_cast<size_t>(block % columns)];
  for (const int64_t rows : count) EXPECT_TRUE(rows == 0 || rows == planes.block_rows());
  EXPECT_EQ(std::count_if(count.begin(), count.end(), [](int64_t rows) { return rows > 0; }),
            static_cast<int64_t>(std::ceil(0.1 * static_cast<double>(columns))));
}

TEST_F(Mosaic, StudyRecoversMoreThanChance) {
  ResidualStudyOptions options;
  options.layers = {0, 1};
  options.block = 16;
  options.budgets = {0, 0.2, 1};
  const auto rows = residual_study(models_ / "llama-gqa", samples_, options);
  EXPECT_EQ(rows.size(), 2u * 7 * 5);
  double chosen = 0, random = 0;
  for (const ResidualStudyRow& row : rows) {
    EXPECT_NEAR(row.recovered[0], 0, 1e-12);
    EXPECT_GT(row.recovered[2], 0.99);
    if (row.rule == "delta-hessian") chosen += row.recovered[1];
    if (row.rule == "random") random += row.recovered[1];
  }
  EXPECT_GT(chosen, random);
  options.layers = {7};
  EXPECT_THROW(residual_study(models_ / "llama-gqa", samples_, options), Error);
  EXPECT_THROW(residual_study(models_ / "gemma3-text", samples_, options), Error);
}

}  // namespace
}  // namespace quatrain
