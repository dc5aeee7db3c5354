// The HTTP side: connections, limits, keys, origins, and errors in one shape. Knows nothing of models.
#pragma once

#include <httplib.h>

#include <atomic>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "serve/connection.h"
#include "serve/worker_pool.h"

namespace quatrain {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;          // 0: any free one
  std::string api_key;      // empty: none is asked for
  std::string cors_origin;  // of pages on other sites that may call the API: an origin or "*"; empty: none
  std::vector<std::string> allowed_hosts;  // names besides host, localhost and addresses; "*": any
  int64_t connections = 256;               // requests that are served at the same time
  ConnectionLimits limits;
};

class HttpServer : private httplib::Server {
 public:
  using Request = httplib::Request;
  using Response = httplib::Response;

  explicit HttpServer(HttpOptions options);
  ~HttpServer() override;

  /// `open`: without a key. An exception becomes an error in OpenAI's shape.
  void get(const std::string& path, std::function<void(const Request&, Response&)> handler,
           bool open = false);
  /// A handler of a JSON body. Such requests may take long: at most options.connections run at once, so that
  /// threads are left for get(); beyond, they are refused with 429.
  void post(const std::string& path, std::function<void(const OrderedJson&, Response&)> handler);
  /// Called after each response with its path (that of a handler, or "other") and status.
  void set_observer(std::function<void(const std::string&, int)> observer) {
    observer_ = std::move(observer);
  }

  /// Binds and serves on threads of its own. Throws when the address is not to be had. Returns the port.
  int start();
  /// Ends when the handlers that run have ended.
  void stop();

 private:
  bool process_and_close_socket(socket_t socket) override;
  HandlerResponse check(const Request& request, Response& response);
  void check_host(const Request& request) const;
  void check_origin(const Request& request, Response& response) const;
  void check_key(const Request& request) const;
  static void check_body(const Request& request, size_t limit);
  OrderedJson read_body(const Request& request, const httplib::ContentReader& reader) const;

  HttpOptions options_;
  std::set<std::string> paths_, open_paths_;
  std::function<void(const std::string&, int)> observer_;
  WorkerPool* pool_ = nullptr;  // owned by the library while it listens
  socket_t listener_ = -1;
  std::atomic<int64_t> busy_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// Compares in a time that depends on the lengths only.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace quatrain
