// What the endpoints share: the model, its scheduler, its metrics.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "engine/scheduler.h"
#include "serve/grammar_cache.h"
#include "serve/metrics.h"
#include "serve/request_fields.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace quatrain {

struct ServiceOptions {
  std::string model_name;
  std::string chat_template;  // instead of the model's own; empty: the model's
  SchedulerOptions scheduler;
  std::chrono::seconds timeout{600};  // for a whole request
  int64_t choices = 128;              // of one request: prompts times n
};

class Service {
 public:
  Service(std::unique_ptr<Engine> engine, std::unique_ptr<Tokenizer> tokenizer, ServiceOptions options);

  const ServiceOptions& options() const { return options_; }
  const Engine& engine() const { return *engine_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  Scheduler& scheduler() { return scheduler_; }
  Metrics& metrics() { return metrics_; }
  GrammarCache& grammars() { return grammars_; }
  /// Null when the model brings none.
  const ChatTemplate* chat_template() const { return template_ ? &*template_ : nullptr; }
  const std::string& chat_template_source() const { return template_source_; }

  /// 404 when the request names another model.
  void check_model(const RequestFields& fields) const;
  /// 400 context_length_exceeded when a prompt is too long.
  void check_length(size_t tokens) const;
  /// What /v1/models says of the model.
  Json model_facts() const;

 private:
  ServiceOptions options_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::string template_source_;
  std::optional<ChatTemplate> template_;
  int64_t created_;
  Metrics metrics_;
  GrammarCache grammars_;
  Scheduler scheduler_;  // the last: its thread uses the others
};

}  // namespace quatrain
