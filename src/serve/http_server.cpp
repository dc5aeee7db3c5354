#include "serve/http_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>

#include "serve/api_error.h"
#include "serve/host_name.h"
#include "serve/request_fields.h"

namespace quatrain {
namespace {

constexpr int64_t kReservedThreads = 8;  // for what is answered at once
constexpr size_t kBacklog = 256;         // connections that wait for a thread
constexpr int kListenBacklog = 512;      // and for being accepted

void answer_error(httplib::Response& response, const ApiError& error) {
  response.status = error.status;
  if (error.retry_after > 0) response.set_header("Retry-After", std::to_string(error.retry_after));
  if (error.status == 401) response.set_header("WWW-Authenticate", "Bearer");
  response.set_content(dump_json(error.to_json()), "application/json");
}

// "http://localhost:8080" -> "localhost:8080"
std::string_view host_of(std::string_view origin) {
  const size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ? origin : origin.substr(scheme + 3);
}

std::string status_text(int status) {
  switch (status) {
    case 404:
      return "there is no such path; the API lies under /v1";
    case 405:
      return "this path does not take this method";
    case 414:
      return "the path is too long";
    default:
      return "the request is not valid HTTP, or it was cut off";
  }
}

}  // namespace

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  volatile unsigned char difference = a.size() != b.size();
  for (size_t i = 0; i < a.size(); ++i)
    difference = difference | static_cast<unsigned char>(a[i] ^ (b.empty() ? 0 : b[i % b.size()]));
  return difference == 0;
}

HttpServer::HttpServer(HttpOptions options) : options_(std::move(options)) {
  require(options_.connections > 0 && options_.connections <= 900, "connections: {} is not in [1, 900]",
          options_.connections);
  new_task_queue = [this] {
    pool_ = new WorkerPool(static_cast<size_t>(options_.connections + kReservedThreads), kBacklog);
    return pool_;
  };
  set_payload_max_length(options_.limits.body_bytes);
  // The library's backlog of 5 drops connections when many clients come at once.
  set_socket_options([this](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    listener_ = socket;
  });
  set_pre_routing_handler(
      [this](const Request& request, Response& response) { return check(request, response); });
  set_exception_handler([](const Request&, Response& response, std::exception_ptr error) {
    try {
      std::rethrow_exception(std::move(error));
    } catch (...) {
      answer_error(response, describe_current_exception());
    }
  });
  set_error_handler(HandlerWithResponse([this](const Request& request, Response& response) {
    if (!response.body.empty()) return HandlerResponse::Unhandled;
    if (response.status == 404 && paths_.contains(request.path)) response.status = 405;
    const char* code = response.status == 404 ? "not_found" : "bad_request";
    answer_error(response, {response.status, "invalid_request_error", code, status_text(response.status)});
    return HandlerResponse::Handled;
  }));
  set_logger([this](const Request& request, const Response& response) {
    if (observer_) observer_(paths_.contains(request.path) ? request.path : "other", response.status);
  });
}

HttpServer::~HttpServer() {
  stop();
}

void HttpServer::get(const std::string& path, std::function<void(const Request&, Response&)> handler,
                     bool open) {
  paths_.insert(path);
  if (open) open_paths_.insert(path);
  Get(path, std::move(handler));
}

void HttpServer::post(const std::string& path, std::function<void(const OrderedJson&, Response&)> handler) {
  paths_.insert(path);
  Post(path, [this, handler = std::move(handler)](const Request& request, Response& response,
                                                  const httplib::ContentReader& reader) {
    const OrderedJson body = read_body(request, reader);
    // Held until the response is written, streams included.
    std::shared_ptr<void> place(nullptr, [this](void*) { --busy_; });
    if (++busy_ > options_.connections) {
      ApiError busy(429, "rate_limit_error", "too_many_requests",
                    fmt::format("{} requests are being served already", options_.connections));
      busy.retry_after = 1;
      throw busy;
    }
    handler(body, response);
    if (!response.content_provider_resource_releaser_)
      response.content_provider_resource_releaser_ = [place](bool) {};
  });
}

int HttpServer::start() {
  if (options_.port == 0) {
    options_.port = bind_to_any_port(options_.host);
    require(options_.port > 0, "{}: cannot listen on this address", options_.host);
  } else {
    require(bind_to_port(options_.host, options_.port),
            "{}:{}: cannot listen on this address; is another server running there?", options_.host,
            options_.port);
  }
  ::listen(listener_, kListenBacklog);
  thread_ = std::thread([this] { listen_after_bind(); });
  while (!is_running()) std::this_thread::yield();  // stop() has no effect on a server that does not run yet
  return options_.port;
}

void HttpServer::stop() {
  stopping_ = true;
  if (!thread_.joinable()) return;
  httplib::Server::stop();
  thread_.join();
}

bool HttpServer::process_and_close_socket(socket_t socket) {
  const auto stopping = [this] { return stopping_.load(); };
  Connection connection(
      socket, options_.limits, [this] { return pool_->has_waiting(); }, stopping);
  if (WorkerPool::refused()) {
    static constexpr std::string_view kBusy =
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: "
        "0\r\n\r\n";
    connection.write(kBusy.data(), kBusy.size());
    return false;
  }
  for (bool first = true; connection.wait_for_request(first); first = false) {
    bool closed = false;
    const bool whole = process_request(connection, false, closed, [&](Request& request) {
      connection.begin_body();
      request.headers.erase("Accept-Encoding");  // compressing costs more than it saves here
      request.ranges.clear();
    });
    if (!whole || closed || connection.closes_after_response()) break;
  }
  return true;
}

HttpServer::HandlerResponse HttpServer::check(const Request& request, Response& response) {
  try {
    check_host(request);
    check_origin(request, response);
    if (request.method == "OPTIONS" && !options_.cors_origin.empty()) {
      response.status = 204;
      return HandlerResponse::Handled;
    }
    if (!open_paths_.contains(request.path)) check_key(request);
    check_body(request, options_.limits.body_bytes);
    return HandlerResponse::Unhandled;
  } catch (const ApiError& error) {
    answer_error(response, error);
    response.set_header("Connection", "close");
    Connection::current()->close_after_response();  // the body was not read
    return HandlerResponse::Handled;
  }
}

// A page whose name was made to point here looks to the browser like one of this server's own, and its Origin
// equals its Host; what gives it away is the name. It does not know the key, where there is one.
void HttpServer::check_host(const Request& request) const {
  if (!options_.api_key.empty() || !request.has_header("Host")) return;
  const std::string host = request.get_header_value("Host");
  if (is_own_host(host, options_.host, options_.allowed_hosts)) return;
  throw ApiError(
      403, "invalid_request_error", "host_not_allowed",
      fmt::format("this server does not answer to the name \"{:.255}\"; start it with --allowed-host NAME "
                  "or --api-key KEY",
                  host));
}

// A page of another site must not use a server that only this machine should reach.
void HttpServer::check_origin(const Request& request, Response& response) const {
  const std::string origin = request.get_header_value("Origin");
  if (origin.empty()) return;
  if (!options_.cors_origin.empty() && (options_.cors_origin == "*" || options_.cors_origin == origin)) {
    response.set_header("Access-Control-Allow-Origin", options_.cors_origin);
    response.set_header("Access-Control-Allow-Headers", "Authorization, Content-Type");
    response.set_header("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    if (options_.cors_origin != "*") response.set_header("Vary", "Origin");
    return;
  }
  if (host_of(origin) == request.get_header_value("Host")) return;
  throw ApiError(403, "invalid_request_error", "origin_not_allowed",
                 "pages of other origins may not call this server; start it with --cors ORIGIN");
}

void HttpServer::check_key(const Request& request) const {
  if (options_.api_key.empty()) return;
  constexpr std::string_view kBearer = "Bearer ";
  const std::string header = request.get_header_value("Authorization");
  if (header.starts_with(kBearer) &&
      equal_in_constant_time(std::string_view(header).substr(kBearer.size()), options_.api_key))
    return;
  throw ApiError(
      401, "authentication_error", "invalid_api_key",
      header.empty() ? "no API key: send it as \"Authorization: Bearer KEY\"" : "the API key is wrong");
}

void HttpServer::check_body(const Request& request, size_t limit) {
  const ApiError too_large(413, "invalid_request_error", "request_too_large",
                           fmt::format("the request's body is larger than {} bytes", limit));
  const bool chunked = request.has_header("Transfer-Encoding");
  if (request.has_header("Content-Length")) {
    const std::string text = request.get_header_value("Content-Length");
    uint64_t length = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
    if (error == std::errc::result_out_of_range || length > limit) throw too_large;
    if (error != std::errc() || end != text.data() + text.size() || chunked ||
        request.get_header_value_count("Content-Length") > 1)
      throw ApiError(400, "invalid_request_error", "bad_request", "Content-Length is not valid");
  } else if (request.method != "GET" && request.method != "HEAD" && request.method != "OPTIONS" && !chunked) {
    throw ApiError(411, "invalid_request_error", "length_required", "the request has no Content-Length");
  }
  if (request.has_header("Content-Encoding"))
    throw ApiError(415, "invalid_request_error", "unsupported_encoding",
                   "compressed requests are not supported; send the JSON as it is");
  if (request.is_multipart_form_data())
    throw ApiError(415, "invalid_request_error", "unsupported_media_type", "send JSON, not a form");
}

OrderedJson HttpServer::read_body(const Request& request, const httplib::ContentReader& reader) const {
  std::string body;
  bool too_large = false;
  const bool whole = reader([&](const char* data, size_t size) {
    too_large = body.size() + size > options_.limits.body_bytes;
    if (!too_large) body.append(data, size);
    return !too_large;
  });
  if (!whole) Connection::current()->close_after_response();
  if (too_large)
    throw ApiError(413, "invalid_request_error", "request_too_large",
                   fmt::format("the request's body is larger than {} bytes", options_.limits.body_bytes));
  if (!whole)
    throw ApiError(400, "invalid_request_error", "bad_request",
                   fmt::format("the body ended after {} bytes, or it came too slowly", body.size()));
  OrderedJson json = parse_request_json(body, request.path);
  if (!json.is_object())
    throw ApiError(400, "invalid_request_error", "invalid_json", "the body is not a JSON object");
  return json;
}

}  // namespace quatrain
