#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/rng.h"

namespace quatrain {
namespace {

int32_t sample_once(const SamplerOptions& options, std::vector<float> logits) {
  return Sampler(options).sample(logits);
}

std::map<int32_t, double> frequencies(SamplerOptions options, const std::vector<float>& logits, int draws) {
  Sampler sampler(options);
  std::map<int32_t, double> share;
  for (int i = 0; i < draws; ++i) {
    auto copy = logits;
    share[sampler.sample(copy)] += 1.0 / draws;
  }
  return share;
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestOfEquals) {
  EXPECT_EQ(sample_once({}, {1, 3, 2}), 1);
  EXPECT_EQ(sample_once({}, {1, 3, 3, 3}), 1);
  EXPECT_EQ(sample_once({}, {-5}), 0);
  EXPECT_EQ(sample_once({}, {-INFINITY, -7, -INFINITY}), 1);
}

TEST(Sampler, DrawsFollowTheSoftmax) {
  const std::vector<float> logits = {0, 1, 2, -INFINITY, 0.5f};
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    double total = 0;
    for (const float logit : logits) total += std::exp(logit / temperature);
    constexpr int kDraws = 40000;
    const auto share = frequencies({.temperature = temperature, .seed = 3}, logits, kDraws);
    EXPECT_FALSE(share.contains(3));
    for (const int32_t id : {0, 1, 2, 4}) {
      const double p = std::exp(logits[static_cast<size_t>(id)] / temperature) / total;
      // five standard deviations of a binomial share
      EXPECT_NEAR(share.at(id), p, 5 * std::sqrt(p * (1 - p) / kDraws)) << id << " at " << temperature;
    }
  }
}

TEST(Sampler, FiltersKeepTheMostLikely) {
  // probabilities 0.4, 0.3, 0.2, 0.1 in a mixed order
  const std::vector<float> logits = {std::log(0.2f), std::log(0.4f), std::log(0.1f), std::log(0.3f)};
  const auto kept = [&](SamplerOptions options) {
    options.temperature = 1;
    std::vector<int32_t> ids;
    for (const auto& [id, share] : frequencies(options, logits, 3000)) ids.push_back(id);
    return ids;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(kept({}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(kept({.top_k = 1}), (Ids{1}));
  EXPECT_EQ(kept({.top_k = 2}), (Ids{1, 3}));
  EXPECT_EQ(kept({.top_k = 100}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(kept({.top_p = 0.35f}), (Ids{1}));
  EXPECT_EQ(kept({.top_p = 0.69f}), (Ids{1, 3}));
  EXPECT_EQ(kept({.top_p = 0.71f}), (Ids{0, 1, 3}));
  EXPECT_EQ(kept({.min_p = 0.7f}), (Ids{1, 3}));              // 0.28 and above
  EXPECT_EQ(kept({.min_p = 0.45f}), (Ids{0, 1, 3}));          // 0.18 and above
  EXPECT_EQ(kept({.top_k = 3, .top_p = 0.7f}), (Ids{1, 3}));  // of the three: 0.44, 0.33, 0.22
  EXPECT_EQ(kept({.top_k = 3, .min_p = 0.7f}), (Ids{1, 3}));
}

TEST(Sampler, EqualLogitsAtTheBorderGoToTheLowerId) {
  const std::vector<float> equal(1000, 1.0f);
  for (const auto& [id, share] : frequencies({.temperature = 1, .top_k = 3}, equal, 200)) EXPECT_LT(id, 3);
  for (const auto& [id, share] : frequencies({.temperature = 1, .top_p = 0.4f}, equal, 200))
    EXPECT_LT(id, 401);
}

// The draw from candidates that are all sorted, likeliest first.
int32_t sample_by_sorting(const SamplerOptions& options, const std::vector<float>& logits, double uniform) {
  const float best = *std::max_element(logits.begin(), logits.end());
  std::vector<std::pair<float, int32_t>> sorted;  // -weight, id
  for (size_t i = 0; i < logits.size(); ++i)
    sorted.emplace_back(-std::exp((logits[i] - best) / options.temperature), static_cast<int32_t>(i));
  std::sort(sorted.begin(), sorted.end());
  if (options.top_k > 0) sorted.resize(std::min(sorted.size(), static_cast<size_t>(options.top_k)));
  double total = 0, kept = 0;
  for (const auto& [weight, id] : sorted) total -= weight;
  size_t count = 0;
  while (count < sorted.size() && -sorted[count].first >= options.min_p && kept < options.top_p * total)
    kept -= sorted[count++].first;
  for (size_t i = 0; i < count; ++i) {
    uniform += sorted[i].first / kept;
    if (uniform < 0) return sorted[i].second;
  }
  return sorted[count - 1].second;
}

TEST(Sampler, FiltersOfManyTokensKeepWhatSortingKeeps) {
  SplitMix64 random(2);
  for (const float spread : {0.01f, 1.0f, 4.0f}) {  // a nucleus of most tokens, of many, of few
    std::vector<float> logits;
    for (int i = 0; i < 5000; ++i) logits.push_back(spread * static_cast<float>(random.normal()));
    for (const float top_p : {0.01f, 0.5f, 0.9f, 0.999f})
      for (const int top_k : {0, 700})
        for (const float min_p : {0.0f, 0.02f}) {
          const SamplerOptions options{
              .temperature = 0.8f, .top_k = top_k, .top_p = top_p, .min_p = min_p, .seed = 11};
          Sampler sampler(options);
          SplitMix64 draws(options.seed);
          for (int i = 0; i < 8; ++i) {
            auto copy = logits;
            ASSERT_EQ(sampler.sample(copy), sample_by_sorting(options, logits, draws.uniform()))
                << "spread " << spread << ", top_p " << top_p << ", top_k " << top_k << ", min_p " << min_p;
          }
        }
  }
}

TEST(Sampler, TheSameSeedGivesTheSameTokens) {
  std::vector<float> logits;
  for (int i = 0; i < 500; ++i) logits.push_back(std::sin(static_cast<float>(i)));
  const auto draw = [&](uint64_t seed) {
    Sampler sampler({.temperature = 1, .top_k = 100, .top_p = 0.9f, .seed = seed});
    std::vector<int32_t> ids;
    for (int i = 0; i < 50; ++i) {
      auto copy = logits;
      ids.push_back(sampler.sample(copy));
    }
    return ids;
  };
  EXPECT_EQ(draw(7), draw(7));
  EXPECT_NE(draw(7), draw(8));
}

TEST(Sampler, PenaltiesAndBiasChangeTheLogits) {
  Sampler repetition({.repetition_penalty = 2});
  repetition.accept(0);
  repetition.accept(1);
  repetition.accept(1);
  std::vector<float> logits = {4, -4, 1};
  repetition.sample(logits);
  EXPECT_EQ(logits, (std::vector<float>{2, -8, 1}));  // once, however often the token came

  Sampler counted({.presence_penalty = 0.5f, .frequency_penalty = 0.25f});
  counted.accept(1);
  counted.accept(1);
  counted.accept(2);
  counted.accept(999);  // not in this vocabulary
  logits = {1, 1, 1};
  EXPECT_EQ(counted.sample(logits), 0);
  EXPECT_EQ(logits, (std::vector<float>{1, 0, 0.25f}));

  Sampler biased({.logit_bias = {{2, 5.0f}, {0, -INFINITY}, {77, 1.0f}}});
  logits = {100, 1, 1};
  EXPECT_EQ(biased.sample(logits), 2);
}

TEST(Sampler, RefusesWhatCannotBeSampled) {
  std::vector<float> logits = {1, NAN, 2};
  EXPECT_THROW(Sampler({}).sample(logits), Error);
  logits = {-INFINITY, -INFINITY};
  EXPECT_THROW(Sampler({.temperature = 1}).sample(logits), Error);
  logits = {1, INFINITY};
  EXPECT_THROW(Sampler({}).sample(logits), Error);
  logits.clear();
  EXPECT_THROW(Sampler({}).sample(logits), Error);
}

TEST(Sampler, OptionsNameTheFieldThatIsOutOfRange) {
  const auto refuses = [](const SamplerOptions& options, std::string_view field) {
    try {
      options.validate();
      ADD_FAILURE() << "accepted a bad " << field;
    } catch (const Error& error) {
      EXPECT_TRUE(std::string_view(error.what()).starts_with(field)) << error.what();
    }
  };
  refuses({.temperature = -1}, "temperature");
  refuses({.temperature = NAN}, "temperature");
  refuses({.top_k = -1}, "top_k");
  refuses({.top_p = 0}, "top_p");
  refuses({.top_p = 1.5f}, "top_p");
  refuses({.min_p = 1}, "min_p");
  refuses({.repetition_penalty = 0}, "repetition_penalty");
  refuses({.presence_penalty = INFINITY}, "presence_penalty");
  refuses({.frequency_penalty = NAN}, "frequency_penalty");
  refuses({.logit_bias = {{1, NAN}}}, "logit_bias");
  refuses({.logit_bias = {{-1, 1.0f}}}, "logit_bias");
}

// A vocabulary's worth, against the C library's exponentials; tokens that a mask forbids have no share.
TEST(LogProbability, OfManyTokens) {
  std::vector<float> logits(5003);
  SplitMix64 random(3);
  for (float& logit : logits)
    logit = static_cast<float>(40 * random.uniform() - 1000 * (random.below(9) == 0));
  logits[7] = -INFINITY;
  long double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<long double>(logit));
  for (const int32_t token : {0, 1, 5002})
    EXPECT_NEAR(log_probability(logits, token),
                logits[static_cast<size_t>(token)] - static_cast<double>(std::log(sum)), 1e-12);
  EXPECT_EQ(log_probability(logits, 7), -INFINITY);
  logits[11] = NAN;
  EXPECT_TRUE(std::isnan(log_probability(logits, 0)));
}

TEST(LogProbability, IsTheLogOfTheSoftmax) {
  const std::vector<float> logits = {1000, 1001, 999};
  const double sum = std::exp(-1.0) + 1 + std::exp(-2.0);
  EXPECT_NEAR(log_probability(logits, 1), -std::log(sum), 1e-12);
  EXPECT_NEAR(log_probability(logits, 2), -2 - std::log(sum), 1e-12);
  EXPECT_THROW(log_probability(logits, 3), Error);
  EXPECT_THROW(log_probability(logits, -1), Error);
}

}  // namespace
}  // namespace quatrain
