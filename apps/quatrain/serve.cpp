// quatrain serve: a model behind an OpenAI-compatible API.
#include <fmt/core.h>

#include <csignal>
#include <memory>

#include "base/log.h"
#include "model/checkpoint.h"
#include "serve/server.h"
#include "verb.h"

namespace quatrain {
namespace {

struct ServeOptions {
  CommonOptions common;
  std::string model, chat_template, body_limit = "4M";
  int64_t timeout = 600, patience = 30;
  EngineOptions engine;
  ServiceOptions service;
  HttpOptions http;
};

std::string shown_host(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

// A file's name without its ending; a directory's whole name, which may have a point in it ("quatrain-4.0").
std::string name_of(const fs::path& model) {
  const fs::path path = fs::weakly_canonical(model);
  return (fs::is_directory(path) ? path.filename() : path.stem()).string();
}

void serve(ServeOptions& options) {
  // Threads inherit the mask, so that only this one takes the signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  options.common.apply_to(options.engine);
  if (!options.chat_template.empty())
    options.service.chat_template = read_file(options.chat_template, 1 << 20);
  if (options.service.model_name.empty()) options.service.model_name = name_of(options.model);
  options.service.timeout = std::chrono::seconds(options.timeout);
  options.http.limits.body_bytes = parse_bytes(options.body_limit, "--body-limit");
  auto tokenizer = load_model_tokenizer(options.model);
  auto engine = Engine::load(options.model, options.engine);
  ModelServer server(std::move(engine), std::move(tokenizer), options.service, options.http);
  const int port = server.start();
  const std::string url = fmt::format("http://{}:{}", shown_host(options.http.host), port);
  if (options.common.json) {
    print_json({{"url", url}, {"model", options.service.model_name}});
    std::fflush(stdout);
  }
  log_info("{} at {}, the API under {}/v1; end with Ctrl-C", options.service.model_name, url, url);
  if (options.http.api_key.empty() && options.http.host != "127.0.0.1" && options.http.host != "localhost")
    log_warn("no --api-key: whoever reaches {} may use this server", options.http.host);

  int signal = 0;
  sigwait(&signals, &signal);
  log_info("finishing what runs, at most {} s; again Ctrl-C ends at once", options.patience);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  server.stop(std::chrono::seconds(options.patience));
}

}  // namespace

void add_serve(CLI::App& app) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* verb = app.add_subcommand("serve", "Serve a model with an OpenAI-compatible API and a chat page");
  verb->footer("Example: quatrain serve artifact --port 8080 --api-key secret");
  verb->add_option("model", options->model, "16-bit model or artifact")->required();
  HttpOptions& http = options->http;
  verb->add_option("--host", http.host, "the address to listen on")->capture_default_str();
  verb->add_option("--port", http.port, "0 takes a free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  verb->add_option("--api-key", http.api_key, "asked for as \"Authorization: Bearer KEY\"")
      ->envname("QUATRAIN_API_KEY");
  verb->add_option("--cors", http.cors_origin,
                   "an origin (or *) whose pages may call the API (default: none)");
  verb->add_option(
      "--allowed-host", http.allowed_hosts,
      "a name (or *) that requests may call the server by, besides addresses, localhost and --host; "
      "with --api-key any");
  verb->add_option("--connections", http.connections, "requests served at the same time")
      ->check(CLI::Range(1, 900))
      ->capture_default_str();
  verb->add_option("--body-limit", options->body_limit, "largest request body")->capture_default_str();
  ServiceOptions& service = options->service;
  verb->add_option("--name", service.model_name, "the model's name in the API (default: from its path)");
  verb->add_option("--chat-template", options->chat_template, "a Jinja file instead of the model's template");
  verb->add_option("--batch", service.scheduler.batch, "generations that run together")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  verb->add_option("--queue", service.scheduler.queue, "generations that may wait; beyond: 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--kv-tokens", service.scheduler.kv_tokens,
                   "tokens that all sequences together may hold (default: half of free memory)")
      ->check(CLI::PositiveNumber);
  verb->add_option("--context", options->engine.context, "longest sequence (default: the model's limit)")
      ->check(CLI::PositiveNumber);
  verb->add_option("--timeout", options->timeout, "seconds that a request may take")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--drain", options->patience, "seconds that running requests have when the server ends")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  add_engine_common(*verb, options->common);
  verb->callback([options] { serve(*options); });
}

}  // namespace quatrain
