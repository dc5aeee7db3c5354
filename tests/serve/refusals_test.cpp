// What is wrong with a request is told in OpenAI's shape, and harms nobody else.
#include <gtest/gtest.h>

#include "serve/host_name.h"
#include "test_server.h"

namespace quatrain {
namespace {

void expect_error(const httplib::Result& result, int status, const std::string& param = "") {
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, status) << result->body;
  const Json body = Json::parse(result->body, nullptr, false);
  ASSERT_TRUE(body.is_object() && body.contains("error")) << result->body;
  const Json& error = body["error"];
  EXPECT_TRUE(error["message"].is_string() && !error["message"].get<std::string>().empty());
  EXPECT_TRUE(error["type"].is_string());
  EXPECT_TRUE(error.contains("code") && error.contains("param"));
  if (!param.empty()) {
    EXPECT_EQ(error["param"], param) << result->body;
  }
}

TEST(Refusals, AbsurdFields) {
  const TestServer server;
  const std::vector<std::pair<std::string, Json>> fields = {
      {"temperature", -1},
      {"temperature", 3},
      {"temperature", "hot"},
      {"temperature", true},
      {"top_p", 1.5},
      {"top_p", -0.1},
      {"top_k", -2},
      {"top_k", 1.5},
      {"min_p", 2},
      {"presence_penalty", 5},
      {"frequency_penalty", -3},
      {"repetition_penalty", 0},
      {"n", 0},
      {"n", 100000},
      {"n", "two"},
      {"max_tokens", -1},
      {"max_tokens", 1e300},
      {"max_tokens", 1.5},
      {"max_completion_tokens", -5},
      {"seed", 1.25},
      {"seed", "x"},
      {"stop", 5},
      {"stop", ""},
      {"stop", {1, 2}},
      {"stop", std::vector<std::string>(17, "x")},
      {"stop", std::string(2000, 'x')},
      {"logit_bias", {{"x", 1}}},
      {"logit_bias", {{"1", 1000}}},
      {"logit_bias", {{"99999", 1}}},
      {"logit_bias", {{"-1", 1}}},
      {"logit_bias", {1, 2}},
      {"stream", "yes"},
      {"stream_options", 3},
      {"best_of", 5},
      {"model", 7},
      {"stop_token_ids", "x"},
      {"stop_token_ids", {-1}},
      {"functions", {{{"name", "f"}}}},
      {"guided_regex", "a*"},
  };
  for (const auto& [name, value] : fields) {
    SCOPED_TRACE(name + " = " + value.dump());
    expect_error(server.post("/v1/completions", {{"prompt", "x"}, {name, value}}), 400, name);
    expect_error(server.post("/v1/chat/completions",
                             {{"messages", {{{"role", "user"}, {"content", "x"}}}}, {name, value}}),
                 400, name);
  }
}

TEST(Refusals, Prompts) {
  const TestServer server;
  for (const Json& prompt : std::vector<Json>{nullptr,
                                              5,
                                              "",
                                              Json::array(),
                                              {Json::array()},
                                              {1, "x"},
                                              {-1},
                                              {300},
                                              {1.5},
                                              {{1, 2}, {3, 300}},
                                              {nullptr},
                                              {{"a", 1}},
                                              std::vector<std::string>(200, "x")}) {
    SCOPED_TRACE(prompt.dump().substr(0, 80));
    expect_error(server.post("/v1/completions", {{"prompt", prompt}}), 400);
  }
  const auto long_one = server.post("/v1/completions", {{"prompt", std::string(513, 'x')}});
  expect_error(long_one, 400);
  EXPECT_EQ(Json::parse(long_one->body)["error"]["code"], "context_length_exceeded");
}

TEST(Refusals, Messages) {
  const TestServer server;
  for (const Json& messages : std::vector<Json>{nullptr,
                                                "hi",
                                                Json::array(),
                                                {1},
                                                {{{"content", "x"}}},
                                                {{{"role", 1}, {"content", "x"}}},
                                                {{{"role", "user"}}},
                                                {{{"role", "user"}, {"content", 5}}},
                                                {{{"role", "pirate"}, {"content", "x"}}},
                                                {{{"role", "user"}, {"content", {"x"}}}},
                                                {{{"role", "user"}, {"content", {{{"type", "text"}}}}}}}) {
    SCOPED_TRACE(messages.dump());
    expect_error(server.post("/v1/chat/completions", {{"messages", messages}}), 400);
  }
}

TEST(Refusals, Bodies) {
  const TestServer server;
  for (const std::string& body :
       {std::string(""), std::string("{"), std::string("[]"), std::string("\"x\""), std::string("null"),
        std::string("{\"prompt\": \"x\"} trailing"), std::string("{\"prompt\": \"\xFF\xFE\"}"),
        std::string("{\"prompt\": \"\\ud800\"}"), "{\"prompt\": " + std::string(100000, '[') + "}",
        "{\"prompt\": " + std::string(300, '[') + std::string(300, ']') + "}", std::string("\0\0\0", 3),
        std::string("{\"prompt\": nan}")}) {
    SCOPED_TRACE(body.substr(0, 60));
    expect_error(server.post("/v1/completions", body), 400);
  }
  std::string keys = "{";
  for (int i = 0; i < 30000; ++i) keys += fmt::format("\"k{}\":1,", i);
  expect_error(server.post("/v1/completions", keys + "\"prompt\":\"x\"}"), 400);
  EXPECT_EQ(server.client().Get("/health")->status, 200);
}

TEST(Refusals, HugeBodies) {
  TestServerOptions options;
  options.http.limits.body_bytes = 10000;
  const TestServer server(options);
  expect_error(server.post("/v1/completions", "{\"prompt\":\"" + std::string(2000000, 'x') + "\"}"), 413);

  RawClient lying(server.port());  // says that it is huge and sends nothing
  lying.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n");
  EXPECT_NE(lying.receive().find(" 413 "), std::string::npos);

  RawClient chunked(server.port());
  chunked.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "1000\r\n" + std::string(4096, 'x') + "\r\n";
  for (int i = 0; i < 100 && chunked.send(chunk); ++i) {
  }
  EXPECT_NE(chunked.receive().find(" 413 "), std::string::npos);
  EXPECT_TRUE(chunked.closed());
}

TEST(Refusals, Transfers) {
  const TestServer server;
  const auto status = [&](const std::string& text) {
    RawClient client(server.port());
    client.send(text);
    const std::string answer = client.receive("}}");
    return answer.size() > 12 ? answer.substr(9, 3) : answer;
  };
  const std::string post = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
  EXPECT_EQ(status(post + "\r\n"), "411");
  EXPECT_EQ(status(post + "Content-Length: 5x\r\n\r\nhello"), "400");
  EXPECT_EQ(status(post + "Content-Length: -5\r\n\r\nhello"), "400");
  EXPECT_EQ(status(post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), "400");
  EXPECT_EQ(status(post + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"), "400");
  EXPECT_EQ(status(post + "Content-Length: 5\r\nContent-Encoding: gzip\r\n\r\nhello"), "415");
  EXPECT_EQ(status(post + "Content-Length: 5\r\nContent-Type: multipart/form-data; boundary=x\r\n\r\nhello"),
            "415");
  EXPECT_EQ(status(post + "Transfer-Encoding: chunked\r\n\r\nnot hex\r\n"), "400");
  EXPECT_EQ(status("GARBAGE\r\n\r\n"), "400");
  EXPECT_EQ(status("GET / HTTP/9.9\r\n\r\n"), "400");
  EXPECT_EQ(status("GET /" + std::string(9000, 'x') + " HTTP/1.1\r\n\r\n"), "414");
}

TEST(Refusals, PathsAndMethods) {
  const TestServer server;
  expect_error(server.client().Get("/v1/nothing"), 404);
  expect_error(server.client().Get("/v1/completions"), 405);
  expect_error(server.client().Delete("/v1/models"), 411);
  expect_error(server.client().Get("/v1/models/other"), 404);
  expect_error(server.post("/v1/completions", {{"prompt", "x"}, {"model", "gpt-4"}}), 404, "model");
  expect_error(server.post("/v1/embeddings", {{"input", "x"}}), 501);
  expect_error(server.post("/detokenize", {{"tokens", {1, 300}}}), 400, "tokens");
  EXPECT_EQ(server.client().Get("/v1/models/fake")->status, 200);
}

TEST(Refusals, Keys) {
  TestServerOptions options;
  options.http.api_key = "secret";
  const TestServer server(options);
  const auto status = [&](const httplib::Headers& headers) {
    return server.client().Get("/v1/models", headers)->status;
  };
  EXPECT_EQ(status({}), 401);
  EXPECT_EQ(status({{"Authorization", "Bearer wrong"}}), 401);
  EXPECT_EQ(status({{"Authorization", "Bearer secre"}}), 401);
  EXPECT_EQ(status({{"Authorization", "Bearer secrets"}}), 401);
  EXPECT_EQ(status({{"Authorization", "Bearer "}}), 401);
  EXPECT_EQ(status({{"Authorization", "secret"}}), 401);
  EXPECT_EQ(status({{"Authorization", "Bearer secret"}}), 200);
  expect_error(server.post("/v1/completions", {{"prompt", "x"}}), 401);
  EXPECT_EQ(server.client().Get("/metrics")->status, 401);
  EXPECT_EQ(server.client().Get("/health")->status, 200);

  EXPECT_TRUE(equal_in_constant_time("", ""));
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abd"));
  EXPECT_FALSE(equal_in_constant_time("abcabc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abc", ""));
  EXPECT_FALSE(equal_in_constant_time("", "abc"));
}

TEST(Refusals, NamesThatAreNotItsOwn) {
  EXPECT_TRUE(is_own_host("127.0.0.1:8080", "127.0.0.1", {}));
  EXPECT_TRUE(is_own_host("192.168.1.7", "0.0.0.0", {}));
  EXPECT_TRUE(is_own_host("[::1]:8080", "127.0.0.1", {}));
  EXPECT_TRUE(is_own_host("LocalHost:1", "127.0.0.1", {}));
  EXPECT_TRUE(is_own_host("app.localhost", "127.0.0.1", {}));
  EXPECT_TRUE(is_own_host("box.lan:8080", "box.lan", {}));
  EXPECT_TRUE(is_own_host("Models.Example.:443", "0.0.0.0", {"models.example"}));
  EXPECT_TRUE(is_own_host("anything", "0.0.0.0", {"*"}));
  for (const char* name :
       {"evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example",
        "evillocalhost", "127.1", "0x7f000001", "1.2.3.4:5:6", "[]", "[", ":", "", "models.example.evil"})
    EXPECT_FALSE(is_own_host(name, "127.0.0.1", {"models.example"})) << name;

  // The page of a name that was made to point here: Origin and Host agree.
  const std::string body = Json({{"prompt", "x"}, {"max_tokens", 1}}).dump();
  const httplib::Headers rebound = {{"Host", "evil.example:8080"}, {"Origin", "http://evil.example:8080"}};
  expect_error(TestServer().client().Post("/v1/completions", rebound, body, "application/json"), 403);
  expect_error(TestServer().client().Get("/metrics", {{"Host", "evil.example"}}), 403);
  TestServerOptions options;
  options.http.allowed_hosts = {"models.example", "evil.example"};
  EXPECT_EQ(TestServer(options).client().Post("/v1/completions", rebound, body, "application/json")->status,
            200);
  TestServerOptions locked;
  locked.http.api_key = "secret";
  expect_error(TestServer(locked).client().Post("/v1/completions", rebound, body, "application/json"), 401);
  EXPECT_EQ(TestServer(locked).client().Get("/health", {{"Host", "models.example"}})->status, 200);
}

TEST(Refusals, OtherOrigins) {
  const std::string body = Json({{"prompt", "x"}, {"max_tokens", 1}}).dump();
  const httplib::Headers foreign = {{"Origin", "https://evil.example"}};
  const TestServer closed;
  const auto refused = closed.client().Post("/v1/completions", foreign, body, "application/json");
  expect_error(refused, 403);
  EXPECT_FALSE(refused->has_header("Access-Control-Allow-Origin"));
  const std::string self = "http://127.0.0.1:" + std::to_string(closed.port());
  EXPECT_EQ(closed.client().Post("/v1/completions", {{"Origin", self}}, body, "application/json")->status,
            200);

  TestServerOptions options;
  options.http.cors_origin = "https://app.example";
  const TestServer open(options);
  const auto allowed =
      open.client().Post("/v1/completions", {{"Origin", "https://app.example"}}, body, "application/json");
  EXPECT_EQ(allowed->status, 200);
  EXPECT_EQ(allowed->get_header_value("Access-Control-Allow-Origin"), "https://app.example");
  expect_error(open.client().Post("/v1/completions", foreign, body, "application/json"), 403);
  EXPECT_EQ(open.client().Options("/v1/completions", {{"Origin", "https://app.example"}})->status, 204);
}

}  // namespace
}  // namespace quatrain
