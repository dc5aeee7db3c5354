#include "eval/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quatrain {
namespace {

/// One token a byte; BOS is 256.
class ByteTokenizer : public Tokenizer {
 public:
  explicit ByteTokenizer(bool add_bos) {
    bos_ = 256;
    add_bos_ = add_bos;
  }
  std::vector<int32_t> encode(std::string_view text, bool) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }
  std::string token_bytes(int32_t id) const override { return std::string(1, static_cast<char>(id)); }
  std::string token_text(int32_t id) const override { return token_bytes(id); }
  std::optional<int32_t> token_id(std::string_view) const override { return std::nullopt; }
  int64_t size() const override { return 257; }
  bool is_special(int32_t id) const override { return id == 256; }
};

/// Gives the byte that follows in the alphabet probability 1/2, all others together 1/2; records what it was
/// asked.
class AlphabetScorer : public Scorer {
 public:
  AlphabetScorer() {
    config_.vocabulary = 257;
    config_.max_positions = 4096;
  }
  std::string_view engine() const override { return "native"; }
  const ModelConfig& config() const override { return config_; }
  void score(std::span<const int32_t> ids, int64_t first, const PositionSink& sink) override {
    lengths.push_back(static_cast<int64_t>(ids.size()));
    firsts.push_back(first);
    starts.push_back(ids[0]);
    for (int64_t t = first; t < static_cast<int64_t>(ids.size()); ++t) {
      std::vector<float> logits(257, 0.0f);
      const int32_t next = (ids[static_cast<size_t>(t)] - 'a' + 1) % 26 + 'a';
      logits[static_cast<size_t>(std::clamp(next, 0, 256))] = std::log(256.0f);  // softmax: 256 / (256 + 256)
      sink(t, logits);
    }
  }
  std::vector<int64_t> lengths, firsts;
  std::vector<int32_t> starts;

 private:
  ModelConfig config_;
};

Corpus alphabet(size_t length) {
  Corpus corpus{"alphabet", "", "digest"};
  for (size_t i = 0; i < length; ++i) corpus.text += static_cast<char>('a' + i % 26);
  return corpus;
}

TEST(Protocol, ParsesNamesAndWindows) {
  EXPECT_EQ(Protocol::parse("token-ppl@2048").name(), "token-ppl@2048");
  EXPECT_EQ(Protocol::parse("llama.cpp-ppl").name(), "llama.cpp-ppl@512");
  EXPECT_EQ(Protocol::parse("word-ppl").kind, Protocol::Kind::WordPpl);
  EXPECT_THROW(Protocol::parse("ppl"), UsageError);
  EXPECT_THROW(Protocol::parse("token-ppl@"), UsageError);
  EXPECT_THROW(Protocol::parse("token-ppl@12x"), UsageError);
  EXPECT_THROW(Protocol::parse("token-ppl@0"), UsageError);
}

TEST(Perplexity, TokenPplScoresAllButTheFirstTokenOfAWindow) {
  AlphabetScorer scorer;
  const auto result =
      perplexity(scorer, ByteTokenizer(false), alphabet(100), Protocol::parse("token-ppl@32"), 0);
  EXPECT_EQ(result.windows, 3);  // the tail of 4 is dropped
  EXPECT_EQ(result.tokens, 3 * 31);
  EXPECT_EQ(result.text_tokens, 100);
  EXPECT_NEAR(result.value, 2.0, 1e-6);  // every next byte has probability 1/2
  EXPECT_NEAR(result.error, 0.0, 1e-6);
  EXPECT_EQ(scorer.lengths, (std::vector<int64_t>{31, 31, 31}));
}

TEST(Perplexity, TokenPplPutsOneBosBeforeTheText) {
  AlphabetScorer scorer;
  perplexity(scorer, ByteTokenizer(true), alphabet(100), Protocol::parse("token-ppl@32"), 2);
  EXPECT_EQ(scorer.starts, (std::vector<int32_t>{256, 'a' + 31 % 26}));
}

TEST(Perplexity, LlamaCppScoresTheSecondHalfAndBeginsEachWindowWithBos) {
  AlphabetScorer scorer;
  const auto result =
      perplexity(scorer, ByteTokenizer(true), alphabet(100), Protocol::parse("llama.cpp-ppl@32"), 0);
  EXPECT_EQ(result.windows, 3);
  EXPECT_EQ(result.tokens, 3 * 15);
  EXPECT_EQ(scorer.firsts, (std::vector<int64_t>{16, 16, 16}));
  EXPECT_EQ(scorer.starts, (std::vector<int32_t>{256, 256, 256}));
}

TEST(Perplexity, WordPplScoresEveryTokenOfAPageOnce) {
  AlphabetScorer scorer;
  const auto result =
      perplexity(scorer, ByteTokenizer(true), alphabet(100), Protocol::parse("word-ppl@32"), 0);
  EXPECT_EQ(result.tokens, 100);
  EXPECT_EQ(result.words, 1);
  EXPECT_EQ(scorer.starts[0], 256);
  // 99 bytes at probability 1/2 and the first one, which BOS does not foretell, at 1/512
  EXPECT_NEAR(std::log(result.value), 99 * std::log(2.0) + std::log(512.0), 1e-3);
}

TEST(Perplexity, CountsTheTokensThatRunNotTheWindowsThatTheyLieIn) {
  AlphabetScorer scorer;
  // a page far shorter than its window: BOS and all but the last byte
  EXPECT_EQ(
      perplexity(scorer, ByteTokenizer(true), alphabet(20), Protocol::parse("word-ppl@32"), 0).tokens_run,
      20);
  EXPECT_EQ(
      perplexity(scorer, ByteTokenizer(true), alphabet(100), Protocol::parse("token-ppl@32"), 2).tokens_run,
      2 * 31);
}

TEST(Perplexity, JoinedRowsAreSeparatedByBlankLines) {
  int64_t tokens = 0, words = 0;
  const Corpus corpus{"rows", "one\n \ntwo\n", "digest"};
  make_windows(Protocol::parse("token-ppl-joined@4"), ByteTokenizer(false), corpus, 0, &tokens, &words);
  EXPECT_EQ(tokens, static_cast<int64_t>(std::string("one\n\n\n\n\ntwo\n").size()));
}

TEST(Perplexity, RatiosArePairedTokenByToken) {
  PerplexityResult base;
  base.protocol = "token-ppl@4";
  base.tokens = 4;
  base.targets = {1, 2, 3, 4};
  base.losses = {1, 9, 2, 0};  // far apart: each figure's own error is large
  PerplexityResult other = base;
  other.losses = {1.25f, 9.25f, 2.25f, 0.25f};
  const auto even = perplexity_ratio(other, base);
  ASSERT_TRUE(even.has_value());
  EXPECT_NEAR(even->value, std::exp(0.25), 1e-9);
  EXPECT_NEAR(even->error, 0, 1e-9);
  other.losses = {1.5f, 9.5f, 2, 0};  // differences 1/2, 1/2, 0, 0: mean 1/4, deviation 1/4
  const auto uneven = perplexity_ratio(other, base);
  EXPECT_NEAR(uneven->error, std::exp(0.25) * 0.25 / std::sqrt(3.0), 1e-9);
  other.words = base.words = 2;  // two tokens a word
  EXPECT_NEAR(perplexity_ratio(other, base)->value, std::exp(0.5), 1e-9);
  other.targets[3] = 5;
  EXPECT_FALSE(perplexity_ratio(other, base).has_value());

  AlphabetScorer scorer;
  const auto result =
      perplexity(scorer, ByteTokenizer(false), alphabet(100), Protocol::parse("token-ppl@32"), 0);
  ASSERT_EQ(result.losses.size(), static_cast<size_t>(result.tokens));
  EXPECT_EQ(result.targets[0], 'b');
  EXPECT_NEAR(result.losses[0], std::log(2.0), 1e-6);
}

TEST(Perplexity, ShortTextsAndWindowsPastTheContextAreErrors) {
  AlphabetScorer scorer;
  EXPECT_THROW(perplexity(scorer, ByteTokenizer(false), alphabet(10), Protocol::parse("token-ppl@32"), 0),
               Error);
  const int64_t context = scorer.config().max_positions;
  try {
    perplexity(scorer, ByteTokenizer(false), alphabet(9999), Protocol::parse("token-ppl@5000"), 0);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(fmt::format("use token-ppl@{}", context)), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace quatrain
