#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "test_server.h"

namespace quatrain {
namespace {

std::vector<int32_t> bytes_of(const std::string& text) {
  std::vector<int32_t> ids;
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

// The engine's own greedy continuation.
std::string continuation(const std::string& prompt, int64_t count) {
  std::vector<int32_t> tokens = bytes_of(prompt);
  std::vector<float> logits(300);
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    FakeEngine::fill(tokens, logits);
    tokens.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    text += static_cast<char>(tokens.back());
  }
  return text;
}

TEST(Completions, EveryFormOfPrompt) {
  const TestServer server;
  const Json common = {{"max_tokens", 20}, {"temperature", 0}};
  const auto texts = [&](const Json& prompt) {
    Json body = common;
    body["prompt"] = prompt;
    std::vector<std::string> texts;
    const Json answer = server.answer("/v1/completions", body);
    for (const Json& choice : answer["choices"]) {
      EXPECT_EQ(choice["index"], texts.size());
      EXPECT_EQ(choice["finish_reason"], "length");
      texts.push_back(choice["text"]);
    }
    return texts;
  };
  const std::vector<std::string> both = {continuation("Hello", 20), continuation("Bye", 20)};
  EXPECT_EQ(texts("Hello"), std::vector<std::string>{both[0]});
  EXPECT_EQ(texts({"Hello", "Bye"}), both);
  EXPECT_EQ(texts(bytes_of("Bye")), std::vector<std::string>{both[1]});
  EXPECT_EQ(texts({bytes_of("Hello"), bytes_of("Bye")}), both);
}

TEST(Completions, UsageCountsEachPromptOnce) {
  const TestServer server;
  const Json answer = server.answer("/v1/completions",
                                    {{"prompt", {"abc", "defg"}}, {"n", 3}, {"max_tokens", 5}, {"seed", 1}});
  EXPECT_EQ(answer["choices"].size(), 6u);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 7);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 30);
  EXPECT_EQ(answer["usage"]["total_tokens"], 37);
}

TEST(Completions, EchoWithLogprobsAlignsWithTheTokens) {
  const TestServer server;
  const std::string prompt = "An evaluation prompt \xC3\xA9.";
  const Json answer = server.answer("/v1/completions", {{"prompt", Json::array({bytes_of(prompt)})},
                                                        {"max_tokens", 1},
                                                        {"temperature", 0},
                                                        {"logprobs", 2},
                                                        {"echo", true},
                                                        {"seed", 1234}});
  const Json& choice = answer["choices"][0];
  const Json& logprobs = choice["logprobs"];
  const size_t count = prompt.size() + 1;
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
    ASSERT_EQ(logprobs[list].size(), count) << list;
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  std::vector<int32_t> tokens = bytes_of(prompt + continuation(prompt, 1));
  std::vector<float> logits(300);
  for (size_t i = 1; i < count; ++i) {
    FakeEngine::fill({tokens.begin(), tokens.begin() + static_cast<int64_t>(i)}, logits);
    // exp in FP32, its sum in FP64: a relative error of 2^-23 in the sum at most.
    EXPECT_NEAR(logprobs["token_logprobs"][i].get<double>(), log_probability(logits, tokens[i]), 1e-6);
    EXPECT_EQ(logprobs["top_logprobs"][i].size(), 2u);
  }
  EXPECT_EQ(logprobs["tokens"][0], "A");
  EXPECT_EQ(logprobs["tokens"][21], "bytes:\\xc3");
}

TEST(Completions, EchoWithoutLogprobsRepeatsThePrompt) {
  const TestServer server;
  Json body = {{"prompt", "Once"}, {"max_tokens", 4}, {"temperature", 0}, {"echo", true}};
  const std::string whole = "Once" + continuation("Once", 4);
  EXPECT_EQ(server.answer("/v1/completions", body)["choices"][0]["text"], whole);
  body["stream"] = true;
  std::string streamed;
  for (const Json& event : parse_events(server.post("/v1/completions", body)->body))
    streamed += event["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(streamed, whole);
}

TEST(Completions, ScoringOnly) {
  const TestServer server;
  const Json answer = server.answer(
      "/v1/completions", {{"prompt", "score me"}, {"max_tokens", 0}, {"logprobs", 0}, {"echo", true}});
  EXPECT_EQ(answer["choices"][0]["text"], "score me");
  EXPECT_EQ(answer["choices"][0]["logprobs"]["tokens"].size(), 8u);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
}

TEST(Completions, AStopTokenKeepsItsPlaceInLogprobs) {
  const TestServer server;
  const std::string text = continuation("x", 1);
  const Json answer = server.answer("/v1/completions", {{"prompt", "x"},
                                                        {"max_tokens", 1},
                                                        {"temperature", 0},
                                                        {"logprobs", 1},
                                                        {"echo", true},
                                                        {"stop_token_ids", bytes_of(text)}});
  EXPECT_EQ(answer["choices"][0]["text"], "x");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["choices"][0]["logprobs"]["tokens"].size(), 2u);
}

TEST(Completions, StopTextsNeverAppear) {
  const TestServer server;
  const std::string all = continuation("stop test", 40);
  for (const auto& [at, length] : {std::pair<size_t, size_t>{10, 1}, {7, 3}, {30, 5}, {0, 2}}) {
    const std::string stop = all.substr(at, length);
    const std::string wanted = all.substr(0, all.find(stop));
    Json body = {
        {"prompt", "stop test"}, {"max_tokens", 40}, {"temperature", 0}, {"stop", {"never there", stop}}};
    const Json whole = server.answer("/v1/completions", body);
    EXPECT_EQ(whole["choices"][0]["text"], wanted);
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
    body["stream"] = true;
    std::string streamed;
    for (const Json& event : parse_events(server.post("/v1/completions", body)->body))
      streamed += event["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(streamed, wanted);
  }
}

TEST(Completions, ASeedRepeatsAndChoicesDiffer) {
  const TestServer server;
  const Json body = {{"prompt", "dice"}, {"max_tokens", 30}, {"seed", 5}, {"n", 4}};
  const auto texts = [&] {
    std::vector<std::string> texts;
    const Json answer = server.answer("/v1/completions", body);
    for (const Json& choice : answer["choices"]) texts.push_back(choice["text"]);
    return texts;
  };
  const auto first = texts();
  EXPECT_EQ(texts(), first);
  EXPECT_EQ(std::set<std::string>(first.begin(), first.end()).size(), 4u);
}

TEST(Completions, BiasBansAndForces) {
  const TestServer server;
  const std::string plain = continuation("bias", 1);
  Json body = {{"prompt", "bias"}, {"max_tokens", 30}, {"temperature", 0}};
  body["logit_bias"][std::to_string(plain[0])] = -100;
  const std::string banned = server.answer("/v1/completions", body)["choices"][0]["text"];
  EXPECT_EQ(banned.find(plain[0]), std::string::npos);
  body["logit_bias"] = {{"65", 100}};
  EXPECT_EQ(server.answer("/v1/completions", body)["choices"][0]["text"], std::string(30, 'A'));
}

TEST(Completions, LongOutputsEndWithTheContext) {
  const TestServer server;
  const Json answer =
      server.answer("/v1/completions", {{"prompt", std::string(500, 'x')}, {"max_tokens", 1000000}});
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 13);  // 512 - 500 in the cache and one more
}

TEST(Completions, TokenizeAndBack) {
  const TestServer server;
  const Json tokens = server.answer("/tokenize", {{"prompt", "h\xC3\xA9llo<|im_end|>"}});
  EXPECT_EQ(tokens["tokens"], (std::vector<int>{104, 0xC3, 0xA9, 108, 108, 111, 258}));
  EXPECT_EQ(tokens["count"], 7);
  EXPECT_EQ(server.answer("/detokenize", {{"tokens", tokens["tokens"]}})["prompt"], "h\xC3\xA9llo<|im_end|>");
  const Json chat = server.answer("/tokenize", {{"messages", {{{"role", "user"}, {"content", "a"}}}}});
  EXPECT_EQ(chat["tokens"][0], kTurnBegin);
  const Json info = Json::parse(server.client().Get("/tokenizer_info")->body);
  EXPECT_EQ(info["eos_token"], "<|im_end|>");
  EXPECT_EQ(info["bos_token"], "<|endoftext|>");
  EXPECT_TRUE(info["chat_template"].is_string());
}

}  // namespace
}  // namespace quatrain
