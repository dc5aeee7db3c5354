#include "serve/server.h"

#include <utility>

#include "serve/api_error.h"
#include "serve/endpoints.h"
#include "serve/page.h"

namespace quatrain {
namespace {

void answer(httplib::Response& response, const Json& json, int status = 200) {
  response.status = status;
  response.set_content(dump_json(json), "application/json");
}

}  // namespace

ModelServer::ModelServer(std::unique_ptr<Engine> engine, std::unique_ptr<Tokenizer> tokenizer,
                         ServiceOptions service, HttpOptions http)
    : service_(std::move(engine), std::move(tokenizer), std::move(service)), http_(std::move(http)) {
  add_paths();
}

ModelServer::~ModelServer() {
  stop(std::chrono::seconds(0));
}

int ModelServer::start() {
  return http_.start();
}

void ModelServer::stop(std::chrono::seconds patience) {
  draining_ = true;
  service_.scheduler().drain(GenerationRequest::Clock::now() + patience);
  http_.stop();
}

void ModelServer::add_paths() {
  using Request = httplib::Request;
  using Response = httplib::Response;
  http_.set_observer(
      [this](const std::string& path, int status) { service_.metrics().request(path, status); });

  http_.get(
      "/health",
      [this](const Request&, Response& response) {
        answer(response, {{"status", draining_ ? "stopping" : "ok"}}, draining_ ? 503 : 200);
      },
      /*open=*/true);
  http_.get("/metrics", [this](const Request&, Response& response) {
    response.set_content(service_.metrics().text(service_.scheduler().stats()),
                         "text/plain; version=0.0.4; charset=utf-8");
  });
  http_.get("/tokenizer_info",
            [this](const Request&, Response& response) { tokenizer_info(service_, response); });
  http_.get("/v1/models", [this](const Request&, Response& response) {
    answer(response, {{"object", "list"}, {"data", Json::array({service_.model_facts()})}});
  });
  http_.get("/v1/models/(.+)", [this](const Request& request, Response& response) {
    service_.check_model(RequestFields(OrderedJson{{"model", request.matches[1].str()}}));
    answer(response, service_.model_facts());
  });

  for (const PageFile& file : page_files())
    http_.get(
        std::string(file.path),
        [file](const Request&, Response& response) {
          // Nothing from elsewhere, and nowhere to send to but here.
          response.set_header(
              "Content-Security-Policy",
              "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
              "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
          response.set_header("X-Content-Type-Options", "nosniff");
          response.set_header("Referrer-Policy", "no-referrer");
          response.set_header("Cache-Control", "no-cache");
          response.set_content(std::string(file.content), std::string(file.type));
        },
        /*open=*/true);

  const auto post = [this](const char* path, auto handler) {
    http_.post(path, [this, handler](const OrderedJson& body, Response& response) {
      handler(service_, body, response);
    });
  };
  post("/v1/chat/completions", chat_completions);
  post("/v1/completions", completions);
  post("/tokenize", tokenize);
  post("/detokenize", detokenize);
  post("/v1/embeddings", [](Service&, const OrderedJson&, Response&) {
    throw ApiError(501, "invalid_request_error", "unsupported_endpoint",
                   "this server generates text; it has no embeddings");
  });
}

}  // namespace quatrain
