// Batched log-likelihoods with shared beginnings against each request alone.
#include "eval/tasks/continuation_scorer.h"

#include <gtest/gtest.h>

#include "engine/sampler.h"
#include "eval/tasks/greedy_text.h"
#include "prefix_engine.h"
#include "serve/byte_tokenizer.h"

namespace quatrain {
namespace {

ContinuationScore alone(const ScoredRequest& request) {
  ContinuationScore score;
  for (size_t t = static_cast<size_t>(request.first); t < request.ids.size(); ++t) {
    const auto logits = PrefixEngine::logits_after(std::span(request.ids).first(t), 300);
    score.logprob += log_probability(logits, request.ids[t]);
    score.greedy =
        score.greedy && std::max_element(logits.begin(), logits.end()) - logits.begin() == request.ids[t];
  }
  return score;
}

std::vector<int32_t> ids(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()),
          reinterpret_cast<const uint8_t*>(text.data() + text.size())};
}

ScoredRequest request(std::string_view context, std::string_view continuation) {
  return {ids(std::string(context) + std::string(continuation)), std::ssize(context)};
}

std::vector<std::vector<ScoredRequest>> odd_items() {
  const std::string shots(200, 's');
  std::vector<std::vector<ScoredRequest>> items = {
      {request(shots + "q1", " a"), request(shots + "q1", " bc"), request(shots + "q1", " b")},
      {request(shots + "q2", "A"), request(shots + "q2", "B")},  // one token each
      {request("they", " same"), request("them", " same")},      // contexts differ
      {request("x", " twice"), request("x", " twice")},          // equal requests
      {request("p", "long continuation"), request("p", "l")},    // one begins like the other
      {request("alone", " word")},
      {request("short context", "z"), request("short", " context and more")},  // first positions differ
  };
  // One whose continuation is what greedy decoding gives.
  ScoredRequest greedy = request("go", "");
  for (int i = 0; i < 5; ++i) {
    const auto logits = PrefixEngine::logits_after(greedy.ids, 300);
    greedy.ids.push_back(
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  }
  items.push_back({greedy, request("go", "on")});
  return items;
}

TEST(ContinuationScorer, GivesWhatEachRequestGivesAlone) {
  const auto items = odd_items();
  for (const int64_t batch : {1, 2, 3, 16}) {
    PrefixEngine engine;
    int64_t heard = 0;
    const auto scores = score_continuations(engine, items, batch, [&](int64_t done) { heard = done; });
    ASSERT_EQ(scores.size(), items.size());
    EXPECT_EQ(heard, std::ssize(items));
    for (size_t i = 0; i < items.size(); ++i) {
      for (size_t r = 0; r < items[i].size(); ++r) {
        const ContinuationScore expected = alone(items[i][r]);
        EXPECT_DOUBLE_EQ(scores[i][r].logprob, expected.logprob) << i << " " << r << " batch " << batch;
        EXPECT_EQ(scores[i][r].greedy, expected.greedy) << i << " " << r;
      }
    }
    EXPECT_TRUE(scores.back()[0].greedy);
    EXPECT_TRUE(engine.sequences.empty()) << "sequences are left behind";
  }
}

TEST(ContinuationScorer, SharedBeginningsRunOnce) {
  const std::string shots(1000, 's');
  std::vector<std::vector<ScoredRequest>> items;
  for (int i = 0; i < 10; ++i) {
    const std::string context = shots + std::string(1, static_cast<char>('0' + i));
    items.push_back({request(context, " a"), request(context, " b"), request(context, " c")});
  }
  PrefixEngine engine;
  score_continuations(engine, items, 1, [](int64_t) {});
  // the shots once, then each item's last token and the space that its choices share
  EXPECT_EQ(engine.fed, 1000 + 10 * 2);
}

TEST(ContinuationScorer, FewerRunTogetherWhereMemoryIsShort) {
  PrefixEngine engine;
  engine.pages = 9;  // the longest of these sequences takes 4 pages
  const auto items = odd_items();
  const auto scores = score_continuations(engine, items, 16, [](int64_t) {});
  EXPECT_DOUBLE_EQ(scores[0][1].logprob, alone(items[0][1]).logprob);
  engine.pages = 0;
  EXPECT_EQ(score_continuations(engine, items, 16, [](int64_t) {}).size(), items.size());
}

TEST(Requests, SplitAsLmEvalSplitsThem) {
  const auto tokenizer = byte_tokenizer();
  const auto split = [&](std::string_view context, std::string_view continuation, int64_t limit = 100) {
    return encode_request(*tokenizer, context, continuation, limit, "item 3");
  };
  EXPECT_EQ(split("ab", " c").first, 2);
  EXPECT_EQ(split("ab  ", "c").first, 2);  // spaces go to the continuation
  EXPECT_EQ(split("ab", " c").ids, ids("ab c"));
  const ScoredRequest empty = split("", "xy");
  EXPECT_EQ(empty.first, 1);
  EXPECT_EQ(empty.ids, (std::vector<int32_t>{kEndOfText, 'x', 'y'}));
  const ScoredRequest cut = split("abcdefgh", "ij", 4);  // four inputs, five ids
  EXPECT_EQ(cut.ids, ids("fghij"));
  EXPECT_EQ(cut.first, 3);
  EXPECT_THROW(split("ab", ""), Error);
  EXPECT_THROW(split("ab", "0123456789", 4), Error);
}

TEST(GreedyText, EqualsOnePromptAtATimeAndStops) {
  const auto tokenizer = byte_tokenizer();
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 7; ++i)
    prompts.push_back(ids("question " + std::string(1, static_cast<char>('a' + i))));
  const std::vector<std::string> none, stops = {"e", "7"};
  const auto run = [&](int64_t batch, const std::vector<std::string>& stop, int64_t context = 4096) {
    PrefixEngine engine(128, context);  // bytes of ASCII only, so that any order of tokens is text
    const auto texts = continue_greedily(engine, *tokenizer, prompts, 40, stop, batch, [](int64_t) {});
    EXPECT_TRUE(engine.sequences.empty());
    return texts;
  };
  const auto whole = run(1, none);
  EXPECT_EQ(run(3, none), whole);
  EXPECT_EQ(run(16, none), whole);
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int32_t> held = prompts[i];
    for (int t = 0; t < 40; ++t) {
      const auto logits = PrefixEngine::logits_after(held, 128);
      held.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    }
    const std::string expected(held.begin() + std::ssize(prompts[i]), held.end());
    EXPECT_EQ(whole[i], expected);
    EXPECT_EQ(run(4, stops)[i], expected.substr(0, expected.find_first_of("e7")));
    EXPECT_EQ(run(4, none, 20)[i], expected.substr(0, 20 - prompts[i].size() + 1));  // the context's end
  }
}

}  // namespace
}  // namespace quatrain
