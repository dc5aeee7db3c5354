// generate() over a scripted engine: what it feeds, emits and reports.
#include "engine/generate.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quatrain {
namespace {

// Says token script[i] after i + 1 tokens of context past the prompt, whatever it is fed.
class ScriptedEngine : public Engine {
 public:
  ScriptedEngine(std::vector<int32_t> script, int64_t context)
      : script_(std::move(script)), context_(context) {}
  const ModelConfig& config() const override { return config_; }
  int64_t context() const override { return context_; }
  int threads() const override { return 1; }
  int64_t weight_bytes_per_token() const override { return 0; }
  int64_t new_sequence() override { return 1; }
  void free_sequence(int64_t) override {}
  int64_t length(int64_t) const override { return std::ssize(fed); }
  void truncate(int64_t, int64_t) override {}
  int64_t pages_in_use() const override { return 0; }
  int64_t pages_in_all() const override { return 0; }
  void forward(std::span<const BatchItem> batch, const LogitsSink& sink) override {
    fed.insert(fed.end(), batch[0].tokens.begin(), batch[0].tokens.end());
    require(std::ssize(fed) <= context_, "past the context");
    std::vector<float> logits(256, 0.0f);
    logits[static_cast<size_t>(script_.at(steps_++))] = 5;
    sink(0, std::ssize(batch[0].tokens) - 1, logits);
  }
  std::vector<int32_t> fed;

 private:
  std::vector<int32_t> script_;
  size_t steps_ = 0;
  int64_t context_;
  ModelConfig config_;
};

// Token = byte.
class ByteTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text, bool) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }
  std::string token_bytes(int32_t id) const override { return std::string(1, static_cast<char>(id)); }
  std::string token_text(int32_t id) const override { return token_bytes(id); }
  std::optional<int32_t> token_id(std::string_view text) const override {
    return static_cast<uint8_t>(text[0]);
  }
  int64_t size() const override { return 256; }
  bool is_special(int32_t id) const override { return id < 3; }
};

struct Outcome {
  Generation generation;
  std::vector<std::string> pieces;
  std::vector<int32_t> fed;
};

Outcome run(std::string_view reply, GenerateOptions options, int64_t context = 1000,
            size_t cancel_after = 1000) {
  const ByteTokenizer tokenizer;
  ScriptedEngine engine(tokenizer.encode(reply, true), context);
  Outcome outcome;
  const auto prompt = tokenizer.encode("ask", true);
  outcome.generation = generate(engine, tokenizer, 1, prompt, options, [&](std::string_view text) {
    outcome.pieces.emplace_back(text);
    return outcome.pieces.size() < cancel_after;
  });
  outcome.fed = engine.fed;
  return outcome;
}

using Finish = Generation::Finish;

TEST(Generate, EndsAtTheTokenLimit) {
  const Outcome r = run("hello", {.max_tokens = 5});
  EXPECT_EQ(r.generation.text, "hello");
  EXPECT_EQ(r.generation.tokens.size(), 5u);
  EXPECT_EQ(r.generation.finish, Finish::Length);
  EXPECT_EQ(r.generation.prompt_tokens, 3);
  EXPECT_EQ(r.fed, (std::vector<int32_t>{'a', 's', 'k', 'h', 'e', 'l',
                                         'l'}));  // the last token's successor: unasked
  EXPECT_EQ(run("x", {.max_tokens = 0}).generation.text, "");
}

TEST(Generate, EndsAtAStopToken) {
  const Outcome r = run("hi\x02zzz", {.max_tokens = 50, .stop_ids = {2}});
  EXPECT_EQ(r.generation.text, "hi");
  EXPECT_EQ(r.generation.tokens, (std::vector<int32_t>{'h', 'i'}));
  EXPECT_EQ(r.generation.finish, Finish::Stop);
}

TEST(Generate, StopTextsSpanTokensAndAreNotShown) {
  const Outcome r = run("one. ENEND and", {.max_tokens = 50, .stop = {"END", "zzz"}});
  EXPECT_EQ(r.generation.text, "one. EN");
  EXPECT_EQ(r.generation.finish, Finish::Stop);
  std::string streamed;
  for (const std::string& piece : r.pieces) streamed += piece;
  EXPECT_EQ(streamed, r.generation.text);
  const Outcome unfinished = run("abcEN", {.max_tokens = 5, .stop = {"END"}});
  EXPECT_EQ(unfinished.generation.text, "abcEN");
  EXPECT_EQ(unfinished.generation.finish, Finish::Length);
}

TEST(Generate, StreamsWholeCharacters) {
  const Outcome r = run("h\xC3\xA9\xF0\x9F\x98\x80.", {.max_tokens = 8});
  EXPECT_EQ(r.pieces, (std::vector<std::string>{"h", "\xC3\xA9", "\xF0\x9F\x98\x80", "."}));
  const Outcome cut = run("h\xF0\x9F", {.max_tokens = 3});
  EXPECT_EQ(cut.generation.text, "h\xEF\xBF\xBD");
}

TEST(Generate, EndsAtTheContext) {
  const Outcome r = run("abcdefgh", {.max_tokens = 50}, 6);
  EXPECT_EQ(r.generation.finish, Finish::Context);
  EXPECT_EQ(r.generation.text, "abcd");  // three tokens fit beside the prompt; the fourth needs no room
}

TEST(Generate, CanBeCancelled) {
  const Outcome r = run("abcdefgh", {.max_tokens = 50}, 1000, 2);
  EXPECT_EQ(r.generation.finish, Finish::Cancelled);
  EXPECT_EQ(r.generation.text, "ab");
}

TEST(Generate, RefusesEmptyPromptsAndBadOptions) {
  const ByteTokenizer tokenizer;
  ScriptedEngine engine({1}, 10);
  EXPECT_THROW(generate(engine, tokenizer, 1, {}, {}), Error);
  EXPECT_THROW(run("a", {.max_tokens = -1}), Error);
  EXPECT_THROW(run("a", {.stop = {""}}), Error);
  EXPECT_THROW(run("a", {.sampling = {.top_p = 2}}), Error);
}

}  // namespace
}  // namespace quatrain
