// The server: a model behind an OpenAI-compatible API, its metrics and a page to chat in.
#pragma once

#include <chrono>
#include <memory>

#include "serve/http_server.h"
#include "serve/service.h"

namespace quatrain {

class ModelServer {
 public:
  ModelServer(std::unique_ptr<Engine> engine, std::unique_ptr<Tokenizer> tokenizer, ServiceOptions service,
              HttpOptions http);
  ~ModelServer();

  /// Serves on threads of its own from now on; returns the port. Throws when the address is not to be had.
  int start();
  /// Accepts no generation any more, waits until those that run are finished (at most `patience`), then ends.
  void stop(std::chrono::seconds patience);

  Service& service() { return service_; }

 private:
  void add_paths();

  Service service_;
  std::atomic<bool> draining_{false};
  HttpServer http_;  // the last: its threads use the service
};

}  // namespace quatrain
