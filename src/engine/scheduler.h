// Continuous batching: requests join and leave the running batch between two steps of one engine.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/prefix_cache.h"
#include "engine/sampler.h"
#include "engine/token_logprobs.h"

namespace quatrain {

/// Allows some tokens and forbids the others, step after step (a grammar). Used by the scheduler's thread
/// only.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  /// Sets the logits of forbidden tokens to -infinity. `left`: tokens that may still be generated, this one
  /// included.
  virtual void mask(std::span<float> logits, int64_t left) = 0;
  /// The token that was chosen. True: the text is complete and nothing may follow.
  virtual bool accept(int32_t token) = 0;
};

enum class Finish { Stop, Length, Cancelled, Deadline, Failed };

/// What happens to one request. Called by the scheduler's thread between steps: calls must return soon.
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;
  /// Left the queue; `reused` tokens of the prompt came from the cache.
  virtual void on_start(int64_t /*reused*/) {}
  /// With prompt_logprobs: of each prompt token but the first.
  virtual void on_prompt(std::vector<TokenLogprob> /*logprobs*/) {}
  /// A generated token; `stop` for one of stop_ids, which ends the reply. `logprob` is null unless asked for.
  /// False: enough, the reply ends with this token (Finish::Stop).
  virtual bool on_token(int32_t token, bool stop, const TokenLogprob* logprob) = 0;
  /// The last call, exactly one for each request. `error` says why where the finish is Failed.
  virtual void on_end(Finish finish, const std::string& error) = 0;
};

struct GenerationRequest {
  using Clock = std::chrono::steady_clock;

  std::vector<int32_t> prompt;
  int64_t max_tokens = 0;  // more than the context has room for means as many as fit
  std::vector<int32_t> stop_ids;
  SamplerOptions sampling;
  int64_t top_logprobs = -1;  // -1: no logprobs; else of each generated token and that many alternatives
  bool prompt_logprobs = false;
  Clock::time_point deadline = Clock::time_point::max();
  std::shared_ptr<TokenConstraint> constraint;
  std::shared_ptr<GenerationListener> listener;
};

/// The queue has no room for a request (come back later), or the scheduler accepts none any more.
class QueueFull : public Error {
 public:
  using Error::Error;
};
class Draining : public Error {
 public:
  using Error::Error;
};

struct SchedulerOptions {
  int64_t batch = 64;                          // sequences that run together
  int64_t queue = 256;                         // requests that wait for a place in the batch
  int64_t prefill_tokens = 256;                // prompt tokens of a step
  int64_t prefill_tokens_beside_decode = 128;  // the same while other sequences wait for their next token
  int64_t kv_tokens = 0;  // that all sequences together may hold; 0: half of what memory allows
  bool reuse_prefixes = true;
};

/// Counts since the start, and the state after the last step.
struct SchedulerStats {
  int64_t waiting = 0, running = 0;
  int64_t pages_in_use = 0, pages_cached = 0, pages_limit = 0;
  int64_t steps = 0, step_tokens = 0;
  int64_t prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0;
  int64_t preemptions = 0;
};

/// Runs one engine on one thread. A request's tokens follow from its own fields alone: neither its neighbours
/// nor a reused prefix nor a preemption changes them, since the engine's results do not depend on how tokens
/// are split into calls and batches.
class Scheduler {
 public:
  /// The engine must outlive the scheduler and be used by nobody else.
  Scheduler(Engine& engine, const SchedulerOptions& options = {});
  /// Cancels what is left.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// The longest sequence: the engine's context, or what the KV limit holds.
  int64_t context() const { return context_; }

  /// Queues all of the requests or none; returns their ids. Throws QueueFull, Draining, or an Error that
  /// names the field which no engine could serve (an empty prompt, one past the context, a token outside the
  /// vocabulary, sampling parameters out of range).
  std::vector<int64_t> submit(std::vector<GenerationRequest> requests);
  /// Ends a request before the next step and frees its pages then. Unknown ids (finished ones) are ignored.
  void cancel(int64_t id);
  /// Accepts no request any more and waits until all are finished; those that are not by `deadline` are
  /// cancelled. True when none was.
  bool drain(GenerationRequest::Clock::time_point deadline);

  SchedulerStats stats() const;

 private:
  using Clock = GenerationRequest::Clock;

  // A request from submit() to on_end(). It has a sequence while it runs.
  struct Job {
    int64_t id = 0;
    GenerationRequest request;
    Sampler sampler;
    std::vector<int32_t> tokens = {};  // the prompt and what was generated
    std::vector<TokenLogprob> prompt_logprobs = {};
    int64_t sequence = -1;
    bool started = false, prompt_reported = false, ended = false;

    int64_t generated() const { return std::ssize(tokens) - std::ssize(request.prompt); }
  };
  using Jobs = std::list<std::unique_ptr<Job>>;

  // A job's part of a step.
  struct Part {
    Job* job = nullptr;
    int64_t position = 0;  // of the first of its tokens
    BatchItem item = {};
    bool completes = false;  // afterwards all of the job's tokens are in the cache
    std::vector<TokenLogprob> prompt_logprobs = {};
    std::vector<float> logits = {};  // of the last token, where it completes
    std::string error = {};
  };

  void check(const GenerationRequest& request) const;
  void run();
  void end_cancelled(const std::vector<int64_t>& cancelled, bool all);
  void admit();
  void start(Job& job);
  void step();
  std::vector<Part> plan();
  bool fits(std::span<const Part> parts) const;
  void preempt_youngest();
  void forward(std::span<Part> parts);
  void forward_together(std::span<Part> parts);
  static void take_logits(Part& part, int64_t token, std::span<const float> logits);
  void finish(Part& part);
  std::optional<Finish> choose_token(Job& job, std::span<float> logits);
  void end(Job& job, Finish finish, const std::string& error = {});
  void publish();

  Engine& engine_;
  SchedulerOptions options_;
  int64_t vocabulary_;
  int64_t pages_limit_ = 0, context_ = 0;

  mutable std::mutex mutex_;  // guards what follows, up to stats_
  std::condition_variable work_, idle_;
  Jobs arrivals_;
  std::vector<int64_t> cancellations_;
  int64_t next_id_ = 1;
  int64_t queued_ = 0;  // requests that never ran so far
  int64_t open_ = 0;    // requests without on_end()
  bool draining_ = false, stopping_ = false, cancel_all_ = false;
  SchedulerStats stats_;

  // The scheduler's thread only.
  Jobs waiting_, running_;
  PrefixCache cache_;
  SchedulerStats counts_;
  std::thread thread_;
};

}  // namespace quatrain
