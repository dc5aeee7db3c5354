#include <gtest/gtest.h>

#include <map>

#include "test_server.h"

namespace quatrain {
namespace {

Json chat(const std::string& text) {
  return {{"messages", {{{"role", "user"}, {"content", text}}}}, {"max_tokens", 24}, {"temperature", 0}};
}

TEST(Chat, StreamsWhatItAnswers) {
  const TestServer server;
  Json body = chat("Hi");
  body["n"] = 3;
  body["temperature"] = 1;
  body["seed"] = 3;
  const Json whole = server.answer("/v1/chat/completions", body);
  EXPECT_EQ(whole["object"], "chat.completion");
  ASSERT_EQ(whole["choices"].size(), 3u);

  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const auto response = server.post("/v1/chat/completions", body);
  EXPECT_EQ(response->get_header_value("Content-Type"), "text/event-stream");
  std::map<int, std::string> texts;
  std::map<int, int> finished, roles;
  Json usage;
  for (const Json& event : parse_events(response->body)) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    if (event["choices"].empty()) {
      usage = event["usage"];
      continue;
    }
    const Json& choice = event["choices"][0];
    const int index = choice["index"];
    EXPECT_EQ(finished[index], 0);
    if (choice["delta"].contains("role")) ++roles[index];
    if (choice["delta"].contains("content")) texts[index] += choice["delta"]["content"].get<std::string>();
    if (!choice["finish_reason"].is_null()) ++finished[index];
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(texts[i], whole["choices"][i]["message"]["content"]);
    EXPECT_EQ(finished[i], 1);
    EXPECT_EQ(roles[i], 1);
  }
  EXPECT_EQ(usage["completion_tokens"], whole["usage"]["completion_tokens"]);
  EXPECT_EQ(usage["prompt_tokens"], whole["usage"]["prompt_tokens"]);
}

TEST(Chat, LogprobsOfEveryToken) {
  const TestServer server;
  Json body = chat("Hi");
  body["logprobs"] = true;
  body["top_logprobs"] = 3;
  const Json choice = server.answer("/v1/chat/completions", body)["choices"][0];
  const Json& content = choice["logprobs"]["content"];
  ASSERT_EQ(content.size(), 24u);
  std::string text;
  for (const Json& token : content) {
    text += token["token"].get<std::string>();
    EXPECT_EQ(token["top_logprobs"].size(), 3u);
    EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]);  // greedy
    EXPECT_LE(token["logprob"].get<double>(), 0);
    EXPECT_EQ(token["bytes"].size(), 1u);
  }
  EXPECT_EQ(text, choice["message"]["content"]);
}

TEST(Chat, TextPartsAreJoinedAndOthersRefused) {
  const TestServer server;
  Json parts = chat("");
  parts["messages"][0]["content"] = {{{"type", "text"}, {"text", "He"}}, {{"type", "text"}, {"text", "llo"}}};
  EXPECT_EQ(server.answer("/v1/chat/completions", parts)["choices"][0]["message"],
            server.answer("/v1/chat/completions", chat("Hello"))["choices"][0]["message"]);
  parts["messages"][0]["content"][1] = {{"type", "image_url"}, {"image_url", {{"url", "data:"}}}};
  const auto refused = server.post("/v1/chat/completions", parts);
  EXPECT_EQ(refused->status, 400);
  EXPECT_NE(refused->body.find("image_url"), std::string::npos);
}

TEST(Chat, ATurnReusesTheLastOnes) {
  const TestServer server;
  Json body = chat("A first question that is long enough to be worth keeping.");
  const Json first = server.answer("/v1/chat/completions", body);
  body["messages"].push_back(first["choices"][0]["message"]);
  body["messages"].push_back({{"role", "user"}, {"content", "And a second one?"}});
  const Json second = server.answer("/v1/chat/completions", body);
  const int cached = second["usage"]["prompt_tokens_details"]["cached_tokens"];
  const int before = first["usage"]["total_tokens"];
  EXPECT_EQ(cached, before - 1);
}

TEST(Chat, WithoutATemplateItSaysSo) {
  class Bare : public Tokenizer {
   public:
    Bare() : bytes_(byte_tokenizer()) {}
    std::vector<int32_t> encode(std::string_view text, bool special) const override {
      return bytes_->encode(text, special);
    }
    std::string token_bytes(int32_t id) const override { return bytes_->token_bytes(id); }
    std::string token_text(int32_t id) const override { return bytes_->token_text(id); }
    std::optional<int32_t> token_id(std::string_view text) const override { return bytes_->token_id(text); }
    int64_t size() const override { return bytes_->size(); }
    bool is_special(int32_t id) const override { return bytes_->is_special(id); }

   private:
    std::unique_ptr<Tokenizer> bytes_;
  };
  ServiceOptions service;
  service.model_name = "bare";
  HttpOptions http;
  http.port = 0;
  ModelServer server(std::make_unique<FakeEngine>(), std::make_unique<Bare>(), service, http);
  httplib::Client client("127.0.0.1", server.start());
  const auto refused = client.Post("/v1/chat/completions", chat("Hi").dump(), "application/json");
  EXPECT_EQ(refused->status, 400);
  EXPECT_NE(refused->body.find("no chat template"), std::string::npos);
}

}  // namespace
}  // namespace quatrain
