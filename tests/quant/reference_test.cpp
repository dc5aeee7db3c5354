// The reference forward against logits that transformers computed in FP32 (golden.json).
#include "quant/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "support/models.h"
#include "support/shared.h"

namespace quatrain {
namespace {

double log_sum_exp(std::span<const float> row) {
  const double largest = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float value : row) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

class TinyModel : public testing::TestWithParam<const char*> {};

// Tolerance: FP32 logits of size up to 60 after 3 to 6 layers; two orders of summation differ by a few
// hundred units in the last place of the largest value (60 * 2^-24 * 300 = 1e-3).
TEST_P(TinyModel, GivesTheGoldenLogits) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP();
  const fs::path path = *shared / "fixtures" / "tiny-models" / GetParam();
  const Json golden = read_json(path / "golden.json");
  const auto ids = golden["input_ids"].get<std::vector<int32_t>>();
  const auto model = ReferenceModel::load(path);
  const std::vector<float> logits = model->logits(ids);
  const auto vocabulary = static_cast<size_t>(model->config().vocabulary);
  ASSERT_EQ(logits.size(), ids.size() * vocabulary);
  const auto compare = [&](size_t row, const char* key) {
    const auto expected = golden[key].get<std::vector<float>>();
    ASSERT_EQ(expected.size(), vocabulary);
    for (size_t i = 0; i < vocabulary; ++i)
      ASSERT_NEAR(logits[row * vocabulary + i], expected[i], 1e-3) << key;
  };
  compare(ids.size() - 1, "logits_last");
  compare(20, "logits_row_20");
  double nll = 0;
  for (size_t t = 0; t + 1 < ids.size(); ++t) {
    const std::span row(logits.data() + t * vocabulary, vocabulary);
    nll += log_sum_exp(row) - row[static_cast<size_t>(ids[t + 1])];
  }
  EXPECT_NEAR(nll / static_cast<double>(ids.size() - 1), golden["nll_mean"].get<double>(), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Reference, TinyModel,
                         testing::Values("gemma3-text", "llama-gqa", "llama-tied-576", "llama31-rope",
                                         "mixtral", "qwen2-bias", "qwen3-moe", "qwen3-qknorm"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Log-probabilities of an independent FP32 forward; five decimals were kept there.
TEST(Reference, SmolLM2LogProbabilities) {
  const auto shared = shared_dir();
  const auto file = smollm2();
  if (!shared || !file) GTEST_SKIP();
  const Json golden = read_json(*shared / "fixtures" / "smollm2" / "golden.json");
  const auto model = ReferenceModel::load(*file);
  const auto vocabulary = static_cast<size_t>(model->config().vocabulary);
  for (const Json& sequence : golden["greedy"]) {
    auto ids = sequence["prompt_ids"].get<std::vector<int32_t>>();
    const size_t prompt = ids.size();
    for (const Json& step : sequence["token_logprob_margin"]) ids.push_back(step[0].get<int32_t>());
    const std::vector<float> logits = model->logits(ids);
    for (size_t i = prompt; i < ids.size(); ++i) {
      const std::span row(logits.data() + (i - 1) * vocabulary, vocabulary);
      const Json& step = sequence["token_logprob_margin"][i - prompt];
      EXPECT_NEAR(row[static_cast<size_t>(ids[i])] - log_sum_exp(row), step[1].get<double>(), 2e-3);
      if (step[2].get<double>() > 4e-3) {  // twice the tolerance: the choice is certain
        EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), ids[i]);
      }
    }
  }
}

TEST(Reference, RefusesTokensOutsideTheVocabulary) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP();
  const auto model = ReferenceModel::load(*shared / "fixtures" / "tiny-models" / "llama-gqa");
  EXPECT_THROW(model->logits(std::vector<int32_t>{1, 320}), Error);
  EXPECT_THROW(model->logits(std::vector<int32_t>{-1}), Error);
  EXPECT_THROW(model->logits(std::vector<int32_t>{}), Error);
}

}  // namespace
}  // namespace quatrain
