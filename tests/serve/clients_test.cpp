// Clients that are many, slow, or gone.
#include <gtest/gtest.h>

#include <future>

#include "serve/worker_pool.h"
#include "test_server.h"

namespace quatrain {
namespace {

using std::chrono::milliseconds;

TestServerOptions slow_engine(int step_milliseconds) {
  TestServerOptions options;
  options.engine.step_time = milliseconds(step_milliseconds);
  return options;
}

std::string long_request(bool stream) {
  return Json({{"prompt", "tell me"}, {"max_tokens", 400}, {"stream", stream}}).dump();
}

TEST(Clients, SixtyFourStreamsAndHealthAnswers) {
  TestServerOptions options = slow_engine(20);
  options.http.connections = 64;
  const TestServer server(options);
  std::vector<std::unique_ptr<RawClient>> streams;
  for (int i = 0; i < 64; ++i) {
    streams.push_back(std::make_unique<RawClient>(server.port()));
    streams.back()->post("/v1/completions", long_request(true));
  }
  for (const auto& stream : streams)
    EXPECT_NE(stream->receive("\"text\"").find("\"text\""), std::string::npos);
  EXPECT_EQ(server.metric("quatrain_requests_running"), 64);
  EXPECT_EQ(server.client().Get("/health")->status, 200);
  // One more generation is one too many.
  const auto refused = server.post("/v1/completions", long_request(false));
  EXPECT_EQ(refused->status, 429);
  EXPECT_TRUE(refused->has_header("Retry-After"));
  EXPECT_EQ(server.metric("quatrain_requests_running"), 64);
  streams.clear();
  EXPECT_TRUE(server.reaches("quatrain_requests_running", 0));
  EXPECT_TRUE(server.reaches("quatrain_kv_pages{state=\"running\"}", 0));
}

TEST(Clients, WhoLeavesFreesItsPages) {
  for (const bool stream : {true, false}) {
    const TestServer server(slow_engine(20));
    RawClient client(server.port());
    client.post("/v1/completions", long_request(stream));
    ASSERT_TRUE(server.reaches("quatrain_requests_running", 1));
    client.leave();
    EXPECT_TRUE(server.reaches("quatrain_requests_running", 0));
    EXPECT_EQ(server.metric("quatrain_kv_pages{state=\"running\"}"), 0);
    EXPECT_EQ(server.metric("quatrain_kv_pages{state=\"cached\"}"), 0);
    EXPECT_EQ(server.metric("quatrain_generations_total{reason=\"cancelled\"}"), 1);
  }
}

// Idle connections are closed when others wait for a thread; a thread that has yet to wake keeps nobody
// waiting.
TEST(Clients, NobodyWaitsWhileAThreadIsFree) {
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  WorkerPool pool(4, 16);
  for (int i = 0; i < 4; ++i) {
    pool.enqueue([ended] { ended.wait(); });
    EXPECT_FALSE(pool.has_waiting()) << i;
  }
  pool.enqueue([] {});
  EXPECT_TRUE(pool.has_waiting());
  end.set_value();
  for (int i = 0; i < 400 && pool.has_waiting(); ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_FALSE(pool.has_waiting());
}

TEST(Clients, AFullQueueSaysWhenToComeBack) {
  TestServerOptions options = slow_engine(10);
  options.service.scheduler.batch = 1;
  options.service.scheduler.queue = 1;
  const TestServer server(options);
  RawClient running(server.port()), waiting(server.port());
  running.post("/v1/completions", long_request(true));
  ASSERT_TRUE(server.reaches("quatrain_requests_running", 1));
  waiting.post("/v1/completions", long_request(true));
  ASSERT_TRUE(server.reaches("quatrain_requests_waiting", 1));
  const auto refused = server.post("/v1/completions", long_request(true));
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(refused->get_header_value("Retry-After"), "1");
  EXPECT_EQ(Json::parse(refused->body)["error"]["code"], "queue_full");
}

TEST(Clients, SlowRequestsAreCutOff) {
  TestServerOptions options;
  options.http.limits.header_time = milliseconds(300);
  options.http.limits.body_time = milliseconds(400);
  const TestServer server(options);
  RawClient silent(server.port()), half_header(server.port()), half_body(server.port());
  half_header.send("POST /v1/completions HTTP/1.1\r\nHost");
  half_body.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"prompt\":");
  EXPECT_EQ(silent.receive(), "");
  EXPECT_TRUE(silent.closed());
  half_header.receive();
  EXPECT_TRUE(half_header.closed());
  EXPECT_NE(half_body.receive().find(" 400 "), std::string::npos);
  EXPECT_TRUE(half_body.closed());
}

TEST(Clients, EndlessHeadersAreCutOff) {
  const TestServer server;
  RawClient client(server.port());
  client.send("GET /health HTTP/1.1\r\n");
  bool taken = true;
  for (int i = 0; i < 10000 && taken; ++i)
    taken = client.send("X-Filler: " + std::string(1000, 'x') + "\r\n");
  client.receive();
  EXPECT_TRUE(client.closed());
  RawClient line(server.port());
  taken = true;
  for (int i = 0; i < 10000 && taken; ++i) taken = line.send(std::string(1000, 'x'));
  EXPECT_EQ(server.client().Get("/health")->status, 200);
}

TEST(Clients, IdleConnectionsMakeRoom) {
  TestServerOptions options;
  options.http.connections = 4;  // 12 threads
  const TestServer server(options);
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 30; ++i) {
    idle.push_back(std::make_unique<RawClient>(server.port()));
    idle.back()->send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  for (const auto& client : idle) EXPECT_NE(client->receive("}").find("\"ok\""), std::string::npos);
  EXPECT_EQ(server.client().Get("/health")->status, 200);
}

TEST(Clients, SeveralRequestsOfOneConnection) {
  const TestServer server;
  httplib::Client client("127.0.0.1", server.port());
  client.set_keep_alive(true);
  for (int i = 0; i < 20; ++i) {
    const auto answer =
        client.Post("/v1/completions", Json({{"prompt", "x"}, {"max_tokens", 2}}).dump(), "application/json");
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 200);
  }
}

TEST(Clients, RequestsEndAtTheirDeadline) {
  TestServerOptions options = slow_engine(20);
  options.service.timeout = std::chrono::seconds(1);
  const TestServer server(options);
  const auto answer = server.post("/v1/completions", long_request(false));
  EXPECT_EQ(answer->status, 504);
  const auto events = parse_events(server.post("/v1/completions", long_request(true))->body);
  EXPECT_EQ(events.back()["error"]["code"], "timeout");
}

TEST(Clients, StoppingFinishesWhatRuns) {
  TestServer server(slow_engine(20));
  RawClient client(server.port());
  client.post("/v1/completions",
              Json({{"prompt", "x"}, {"max_tokens", 300}, {"temperature", 0}, {"stream", true}}).dump());
  ASSERT_TRUE(server.reaches("quatrain_requests_running", 1));
  std::thread stop([&] { server.server().stop(std::chrono::seconds(60)); });
  const auto health = [&] {
    const auto response = server.client().Get("/health");
    return response ? response->status : 0;
  };
  while (health() == 200) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(health(), 503);
  const auto refused = server.post("/v1/completions", long_request(false));
  EXPECT_EQ(refused ? refused->status : 0, 503);
  const std::string body = client.receive("[DONE]");
  EXPECT_NE(body.find("[DONE]"), std::string::npos);
  EXPECT_NE(body.find("\"length\""), std::string::npos);
  stop.join();
  EXPECT_FALSE(server.client().Get("/health"));
}

TEST(Clients, StoppingDoesNotWaitForever) {
  TestServer server(slow_engine(20));
  RawClient client(server.port());
  client.post("/v1/completions", long_request(true));
  ASSERT_TRUE(server.reaches("quatrain_requests_running", 1));
  server.server().stop(std::chrono::seconds(0));
  EXPECT_NE(client.receive("[DONE]").find("shutting_down"), std::string::npos);
}

TEST(Clients, AnAddressInUseIsAnError) {
  const TestServer server;
  ServiceOptions service;
  service.model_name = "second";
  HttpOptions http;
  http.port = server.port();
  ModelServer second(std::make_unique<FakeEngine>(), byte_tokenizer(), service, http);
  EXPECT_THROW(second.start(), Error);
}

// Many clients at once: some leave, some talk nonsense, and whoever stays gets what a quiet server gives.
TEST(Clients, ACrowd) {
  TestServerOptions options;
  options.engine.step_time = std::chrono::microseconds(500);
  options.service.scheduler.kv_tokens = 4000;
  const TestServer server(options);
  const auto request = [](uint64_t kind) {
    return Json({{"prompt", std::string(1 + 40 * kind, static_cast<char>('a' + kind))},
                 {"max_tokens", 10 + 10 * kind},
                 {"temperature", kind % 2},
                 {"seed", kind}});
  };
  std::vector<std::string> quiet;
  for (uint64_t kind = 0; kind < 8; ++kind)
    quiet.push_back(server.answer("/v1/completions", request(kind))["choices"][0]["text"]);
  std::atomic<int> whole{0}, wrong{0};
  std::vector<std::thread> clients;
  for (uint64_t c = 0; c < 16; ++c)
    clients.emplace_back([&, c] {
      SplitMix64 random(c);
      for (int i = 0; i < 10; ++i) {
        const uint64_t kind = random.below(8), manner = random.below(6);
        if (manner == 0) {
          RawClient rude(server.port());
          Json body = request(kind);
          body["stream"] = true;
          rude.post("/v1/completions", body.dump());
          if (random.below(2) == 0) rude.receive("data");
        } else if (manner == 1) {
          if (server.post("/v1/completions", "{\"prompt\": [" + std::string(random.below(300), '['))
                  ->status != 400)
            ++wrong;
        } else {
          const Json answer = server.answer("/v1/completions", request(kind));
          if (answer["choices"][0]["text"] != quiet[kind]) ++wrong;
          ++whole;
        }
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(whole, 0);
  EXPECT_TRUE(server.reaches("quatrain_kv_pages{state=\"running\"}", 0));
  EXPECT_EQ(server.metric("quatrain_requests_waiting"), 0);
}

}  // namespace
}  // namespace quatrain
