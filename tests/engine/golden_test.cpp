// The engine against logits of an independent implementation: tiny random models of every architecture.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "engine/engine.h"
#include "support/shared.h"

namespace quatrain {
namespace {

// FP32 sums of another order differ by a few units in the last place of the largest term of each sum, a
// handful of layers deep: 1e-4 of the logits' range (measured: below 1e-5).
void expect_close(std::span<const float> logits, const std::vector<float>& golden) {
  ASSERT_EQ(logits.size(), golden.size());
  float range = 0, worst = 0;
  for (const float value : golden) range = std::max(range, std::fabs(value));
  for (size_t i = 0; i < golden.size(); ++i) worst = std::max(worst, std::fabs(logits[i] - golden[i]));
  EXPECT_LT(worst, 1e-4f * range);
}

class TinyModel : public testing::TestWithParam<std::string> {};

TEST_P(TinyModel, GivesTheGoldenLogits) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "no shared fixtures";
  const fs::path model = *shared / "fixtures/tiny-models" / GetParam();
  const Json golden = read_json(model / "golden.json");
  const auto ids = golden["input_ids"].get<std::vector<int32_t>>();
  const auto engine = Engine::load(model, {.threads = 2});

  const int64_t sequence = engine->new_sequence();
  const BatchItem item{sequence, ids, BatchItem::Logits::All};
  double nll = 0;
  int64_t rows = 0;
  engine->forward({&item, 1}, [&](int64_t, int64_t token, std::span<const float> logits) {
    EXPECT_EQ(token, rows++);
    if (token == 20) expect_close(logits, golden["logits_row_20"].get<std::vector<float>>());
    if (token + 1 == std::ssize(ids))
      return expect_close(logits, golden["logits_last"].get<std::vector<float>>());
    double sum = 0;
    const float top = *std::max_element(logits.begin(), logits.end());
    for (const float value : logits) sum += std::exp(static_cast<double>(value) - top);
    nll -= logits[static_cast<size_t>(ids[static_cast<size_t>(token + 1)])] - top - std::log(sum);
  });
  EXPECT_EQ(rows, std::ssize(ids));
  const auto golden_nll = golden["nll_mean"].get<double>();
  EXPECT_NEAR(nll / static_cast<double>(rows - 1), golden_nll, 1e-4 * golden_nll);

  const int64_t decoding = engine->new_sequence();
  auto next = golden["greedy_prompt"].get<std::vector<int32_t>>();
  std::erase(next, 0);  // the fixture's generate() took 0 for padding: masked, and not counted in positions
  std::vector<int32_t> greedy;
  for (const auto wanted = golden["greedy"].size(); greedy.size() < wanted;) {
    const BatchItem step{decoding, next, BatchItem::Logits::Last};
    engine->forward({&step, 1}, [&](int64_t, int64_t, std::span<const float> logits) {
      greedy.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    });
    next = {greedy.back()};
  }
  EXPECT_EQ(greedy, golden["greedy"].get<std::vector<int32_t>>());
}

INSTANTIATE_TEST_SUITE_P(Golden, TinyModel,
                         testing::Values("gemma3-text", "llama-gqa", "llama-tied-576", "llama31-rope",
                                         "mixtral", "qwen2-bias", "qwen3-moe", "qwen3-qknorm"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace quatrain
