// A server over the fake engine, and clients: a well-behaved one, and bare sockets for the others.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "byte_tokenizer.h"
#include "fake_engine.h"
#include "serve/server.h"

namespace quatrain {

struct TestServerOptions {
  FakeEngineOptions engine;
  ServiceOptions service;
  HttpOptions http;
};

class TestServer {
 public:
  explicit TestServer(TestServerOptions options = {}) {
    options.http.port = 0;
    if (options.service.model_name.empty()) options.service.model_name = "fake";
    auto engine = std::make_unique<FakeEngine>(options.engine);
    engine_ = engine.get();
    server_ =
        std::make_unique<ModelServer>(std::move(engine), byte_tokenizer(), options.service, options.http);
    port_ = server_->start();
  }

  httplib::Client client() const {
    httplib::Client client("127.0.0.1", port_);
    client.set_read_timeout(60);
    return client;
  }
  httplib::Result post(const std::string& path, const std::string& body) const {
    return client().Post(path, body, "application/json");
  }
  httplib::Result post(const std::string& path, const Json& body) const { return post(path, body.dump()); }
  /// The JSON of an answer with status 200.
  Json answer(const std::string& path, const Json& body) const {
    const auto result = post(path, body);
    require(static_cast<bool>(result), "{}: no answer", path);
    require(result->status == 200, "{}: {} {}", path, result->status, result->body);
    return Json::parse(result->body);
  }
  /// The value of a metric by its full name, labels included.
  double metric(const std::string& name) const {
    const std::string text = client().Get("/metrics")->body;
    const size_t at = ("\n" + text).find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size()));
  }
  /// Waits until a metric has this value.
  bool reaches(const std::string& name, double value) const {
    for (int i = 0; i < 400; ++i) {
      if (metric(name) == value) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
    }
    return false;
  }

  int port() const { return port_; }
  FakeEngine& engine() { return *engine_; }
  ModelServer& server() { return *server_; }

 private:
  FakeEngine* engine_;
  std::unique_ptr<ModelServer> server_;
  int port_;
};

/// A bare connection.
class RawClient {
 public:
  explicit RawClient(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    require(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "cannot connect");
  }
  ~RawClient() { leave(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void leave() {
    if (socket_ >= 0) close(socket_);
    socket_ = -1;
  }
  /// False when the server has closed.
  bool send(const std::string& text) const {
    return ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  void post(const std::string& path, const std::string& body) const {
    send(fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}", path, body.size(),
                     body));
  }
  /// What comes until `end` is in it, the server closes, or 20 seconds have passed.
  std::string receive(const std::string& end = "\x01") {
    std::string text;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (text.find(end) == std::string::npos && std::chrono::steady_clock::now() < deadline) {
      pollfd descriptor{socket_, POLLIN, 0};
      if (poll(&descriptor, 1, 100) <= 0) continue;
      char buffer[4096];
      const ssize_t count = recv(socket_, buffer, sizeof buffer, 0);
      if (count <= 0) {
        closed_ = true;
        break;
      }
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }
  bool closed() const { return closed_; }

 private:
  int socket_;
  bool closed_ = false;
};

/// The JSON of a stream's events; [DONE] must be the last.
inline std::vector<Json> parse_events(const std::string& body) {
  std::vector<Json> events;
  bool done = false;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    require(end != std::string::npos, "an event is cut off");
    const std::string line = body.substr(at, end - at);
    at = end + 2;
    if (line.starts_with(":")) continue;
    require(line.starts_with("data: ") && !done, "not an event: {}", line);
    done = line == "data: [DONE]";
    if (!done) events.push_back(Json::parse(line.substr(6)));
  }
  require(done, "the stream has no [DONE]");
  return events;
}

}  // namespace quatrain
