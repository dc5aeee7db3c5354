#include "serve/service.h"

#include <ctime>
#include <utility>

#include "serve/api_error.h"

namespace quatrain {

Service::Service(std::unique_ptr<Engine> engine, std::unique_ptr<Tokenizer> tokenizer, ServiceOptions options)
    : options_(std::move(options)),
      engine_(std::move(engine)),
      tokenizer_(std::move(tokenizer)),
      template_source_(options_.chat_template.empty() ? tokenizer_->chat_template() : options_.chat_template),
      created_(std::time(nullptr)),
      grammars_(*tokenizer_, engine_->config().vocabulary),
      scheduler_(*engine_, options_.scheduler) {
  if (!template_source_.empty()) template_.emplace(template_source_);
}

void Service::check_model(const RequestFields& fields) const {
  const auto name = fields.text("model");
  if (name && *name != options_.model_name)
    throw ApiError(
        404, "invalid_request_error", "model_not_found",
        fmt::format("there is no model \"{}\" here; this server has \"{}\"", *name, options_.model_name),
        "model");
}

void Service::check_length(size_t tokens) const {
  if (static_cast<int64_t>(tokens) > scheduler_.context())
    throw ApiError(
        400, "invalid_request_error", "context_length_exceeded",
        fmt::format("the prompt has {} tokens; this server's context is {}", tokens, scheduler_.context()));
  if (tokens == 0) fail_field("prompt", "the prompt has no tokens");
}

Json Service::model_facts() const {
  const ModelConfig& config = engine_->config();
  return {{"id", options_.model_name},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "quatrain"},
          {"max_model_len", scheduler_.context()},
          {"meta",
           {{"architecture", config.architecture},
            {"layers", config.layers},
            {"hidden", config.hidden},
            {"heads", config.heads},
            {"kv_heads", config.kv_heads},
            {"vocabulary", config.vocabulary},
            {"parameters", parameter_count(config)},
            {"weight_bytes_per_token", engine_->weight_bytes_per_token()},
            {"threads", engine_->threads()},
            {"chat", template_.has_value()}}}};
}

}  // namespace quatrain
