// Trained models end to end: tokenizer, engine and sampler give the texts and figures of other
// implementations.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "model/checkpoint.h"
#include "support/models.h"
#include "support/shared.h"

namespace quatrain {
namespace {

TEST(TrainedModels, Stories260kTellsItsStory) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "no shared fixtures";
  const fs::path folder = *shared / "data/models/stories260K";
  // The story of the model's own page: from "$ ./run ... -t 0.0" to the end of that block.
  const std::string page = read_file(folder / "stories260K.md");
  const size_t command = page.find("-t 0.0\n");
  ASSERT_NE(command, std::string::npos);
  const size_t begin = page.find('\n', command) + 1;
  const std::string story = page.substr(begin, page.find("\n```", begin) - begin);

  const auto engine = Engine::load(folder / "stories260K.bin", {.threads = 2});
  const auto tokenizer = load_model_tokenizer(folder / "stories260K.bin");
  const std::vector<int32_t> prompt = {1};  // BOS alone: the story begins by itself
  const Generation told =
      generate(*engine, *tokenizer, engine->new_sequence(), prompt, {.max_tokens = 256, .stop_ids = {1, 2}});
  EXPECT_EQ(told.text, story);
  EXPECT_GT(story.size(), 500u);
}

TEST(TrainedModels, SmolLm2GivesTheGoldenLogProbabilities) {
  const auto shared = shared_dir();
  const auto model = smollm2();
  if (!shared || !model) GTEST_SKIP() << "no model; scripts/fetch-model fetches it";
  const Json golden = read_json(*shared / "fixtures/smollm2/golden.json");
  const auto engine = Engine::load(*model);
  for (const Json& reply : golden["greedy"]) {
    const int64_t sequence = engine->new_sequence();
    auto next = reply["prompt_ids"].get<std::vector<int32_t>>();
    for (const Json& step : reply["token_logprob_margin"]) {
      const auto token = step[0].get<int32_t>();
      const BatchItem item{sequence, next, BatchItem::Logits::Last};
      engine->forward({&item, 1}, [&](int64_t, int64_t, std::span<const float> logits) {
        EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), token);
        // The fixture has four decimals; two FP32 implementations differ by a few 1e-5 on logits of about 20.
        EXPECT_NEAR(log_probability(logits, token), step[1].get<double>(), 3e-4);
      });
      next = {token};
    }
    engine->free_sequence(sequence);
  }
}

TEST(TrainedModels, SmolLm2ScoresTheFirstWindowOfWikiText) {
  const auto shared = shared_dir();
  const auto model = smollm2();
  if (!shared || !model) GTEST_SKIP() << "no model; scripts/fetch-model fetches it";
  const Json golden = read_json(*shared / "fixtures/smollm2/golden.json")["wiki_test_window0"];
  const std::string text = read_file(*shared / "data/text/wikitext-2-raw/wiki.test.raw.gz").substr(0, 30000);
  std::vector<int32_t> ids = load_model_tokenizer(*model)->encode(text);
  ids.resize(golden["tokens"].get<size_t>());
  const auto engine = Engine::load(*model);
  const BatchItem item{engine->new_sequence(), ids, BatchItem::Logits::All};
  double total = 0;
  const auto first = golden["nll_positions_1_to_8"].get<std::vector<double>>();
  engine->forward({&item, 1}, [&](int64_t, int64_t token, std::span<const float> logits) {
    const auto t = static_cast<size_t>(token);
    if (t + 1 == ids.size()) {
      for (const Json& top : golden["last_position_top5"])
        EXPECT_NEAR(log_probability(logits, top[0].get<int32_t>()), top[1].get<double>(), 3e-4);
      return;
    }
    const double nll = -log_probability(logits, ids[t + 1]);
    if (t < first.size()) {
      EXPECT_NEAR(nll, first[t], 3e-4) << "position " << t + 1;
    }
    total += nll;
  });
  EXPECT_NEAR(total / static_cast<double>(ids.size() - 1), golden["mean_nll_scored_2047"].get<double>(),
              1e-4);
}

}  // namespace
}  // namespace quatrain
