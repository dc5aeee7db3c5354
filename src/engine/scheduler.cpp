#include "engine/scheduler.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "ops/kv_cache.h"

namespace quatrain {

Scheduler::Scheduler(Engine& engine, const SchedulerOptions& options)
    : engine_(engine), options_(options), vocabulary_(engine.config().vocabulary), cache_(engine) {
  require(options.batch > 0, "batch: {} is not positive", options.batch);
  require(options.queue > 0, "queue: {} is not positive", options.queue);
  require(options.prefill_tokens > 0 && options.prefill_tokens_beside_decode > 0,
          "prefill tokens: {} and {} are not positive", options.prefill_tokens,
          options.prefill_tokens_beside_decode);
  require(options.kv_tokens >= 0, "KV tokens: {} is negative", options.kv_tokens);
  pages_limit_ = options.kv_tokens > 0 ? pages_of(options.kv_tokens) : engine.pages_in_all() / 2;
  require(pages_limit_ > 0, "no memory for a KV page; use a smaller model");
  context_ =
      std::min(engine.context(), std::min(pages_limit_, pages_of(engine.context())) * ops::kPageTokens);
  counts_.pages_limit = stats_.pages_limit = pages_limit_;
  thread_ = std::thread([this] { run(); });
}

Scheduler::~Scheduler() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = stopping_ = cancel_all_ = true;
  }
  work_.notify_all();
  thread_.join();
}

void Scheduler::check(const GenerationRequest& request) const {
  require(!request.prompt.empty(), "the prompt has no tokens");
  require(std::ssize(request.prompt) <= context_, "the prompt has {} tokens; the context is {}",
          request.prompt.size(), context_);
  require(request.max_tokens >= 0, "max_tokens: {} is negative", request.max_tokens);
  for (const int32_t token : request.prompt)
    require(token >= 0 && token < vocabulary_, "the prompt's token {} is not in the vocabulary of {}", token,
            vocabulary_);
  request.sampling.validate();
  for (const auto& [token, bias] : request.sampling.logit_bias)
    require(token < vocabulary_, "logit_bias: token {} is not in the vocabulary of {}", token, vocabulary_);
}

std::vector<int64_t> Scheduler::submit(std::vector<GenerationRequest> requests) {
  Jobs jobs;
  for (GenerationRequest& request : requests) {
    check(request);
    Sampler sampler(request.sampling);
    std::vector<int32_t> tokens = request.prompt;
    // Presence and frequency count what was generated; only the repetition penalty is about the whole text.
    if (request.sampling.repetition_penalty != 1)
      for (const int32_t token : tokens) sampler.accept(token);
    auto job = std::make_unique<Job>(Job{.request = std::move(request), .sampler = std::move(sampler)});
    job->tokens = std::move(tokens);
    jobs.push_back(std::move(job));
  }
  std::vector<int64_t> ids;
  {
    const std::lock_guard lock(mutex_);
    if (draining_) throw Draining("the server is shutting down");
    if (queued_ + std::ssize(jobs) > options_.queue)
      throw QueueFull(fmt::format("{} requests wait already; the queue holds {}", queued_, options_.queue));
    for (const auto& job : jobs) ids.push_back(job->id = next_id_++);
    queued_ += std::ssize(jobs);
    open_ += std::ssize(jobs);
    arrivals_.splice(arrivals_.end(), jobs);
  }
  work_.notify_one();
  return ids;
}

void Scheduler::cancel(int64_t id) {
  {
    const std::lock_guard lock(mutex_);
    cancellations_.push_back(id);
  }
  work_.notify_one();
}

bool Scheduler::drain(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  const auto finished = [this] { return open_ == 0; };
  if (idle_.wait_until(lock, deadline, finished)) return true;
  cancel_all_ = true;
  work_.notify_one();
  idle_.wait(lock, finished);
  return false;
}

SchedulerStats Scheduler::stats() const {
  const std::lock_guard lock(mutex_);
  SchedulerStats stats = stats_;
  stats.waiting = queued_;
  return stats;
}

void Scheduler::run() {
  for (;;) {
    bool cancel_all;
    std::vector<int64_t> cancelled;
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [this] {
        return stopping_ || !arrivals_.empty() || !cancellations_.empty() || !running_.empty() ||
               !waiting_.empty();
      });
      waiting_.splice(waiting_.end(), arrivals_);
      if (stopping_ && waiting_.empty() && running_.empty()) return;
      cancel_all = cancel_all_;
      cancelled.swap(cancellations_);
    }
    end_cancelled(cancelled, cancel_all);
    admit();
    if (!running_.empty()) step();
    publish();
  }
}

void Scheduler::end_cancelled(const std::vector<int64_t>& cancelled, bool all) {
  const auto now = Clock::now();
  for (Jobs* jobs : {&waiting_, &running_})
    std::erase_if(*jobs, [&](const std::unique_ptr<Job>& job) {
      if (all || std::ranges::find(cancelled, job->id) != cancelled.end()) {
        end(*job, Finish::Cancelled);
      } else if (now >= job->request.deadline) {
        end(*job, Finish::Deadline);
      } else {
        return false;
      }
      return true;
    });
}

// In the order of arrival, as long as every running sequence could take one more page than it will soon have.
void Scheduler::admit() {
  const auto pages = [](const Job& job) { return pages_of(std::ssize(job.tokens) + ops::kPageTokens); };
  int64_t taken = 0;
  for (const auto& job : running_) taken += pages(*job);
  while (!waiting_.empty() && std::ssize(running_) < options_.batch) {
    Job& job = *waiting_.front();
    taken += pages(job);
    if (taken > pages_limit_ && !running_.empty()) return;
    start(job);
    running_.splice(running_.end(), waiting_, waiting_.begin());
  }
}

void Scheduler::start(Job& job) {
  int64_t reused = 0;
  if (options_.reuse_prefixes && (!job.request.prompt_logprobs || job.prompt_reported)) {
    if (const auto match = cache_.take(job.tokens)) {
      job.sequence = match->sequence;
      reused = match->tokens;
    }
  }
  if (job.sequence < 0) job.sequence = engine_.new_sequence();
  if (job.started) return;
  job.started = true;
  counts_.prompt_tokens += std::ssize(job.request.prompt);
  counts_.reused_tokens += reused;
  {
    const std::lock_guard lock(mutex_);
    --queued_;
  }
  job.request.listener->on_start(reused);
}

void Scheduler::step() {
  std::vector<Part> parts = plan();
  while (!fits(parts)) {
    if (!cache_.evict()) preempt_youngest();
    parts = plan();
  }
  forward(parts);
  ++counts_.steps;
  for (Part& part : parts) {
    counts_.step_tokens += std::ssize(part.item.tokens);
    finish(part);
  }
  std::erase_if(running_, [](const std::unique_ptr<Job>& job) { return job->ended; });
}

// One token of every sequence that decodes, and an equal share of the prompt tokens for each of the others,
// so that a short prompt does not wait for a long one.
std::vector<Scheduler::Part> Scheduler::plan() {
  int64_t prefilling = 0;
  for (const auto& job : running_)
    if (std::ssize(job->tokens) - engine_.length(job->sequence) > 1) ++prefilling;
  int64_t budget =
      prefilling == std::ssize(running_) ? options_.prefill_tokens : options_.prefill_tokens_beside_decode;
  std::vector<Part> parts;
  for (const auto& job : running_) {
    const int64_t position = engine_.length(job->sequence);
    int64_t count = std::ssize(job->tokens) - position;
    if (count > 1) {
      count = std::min(count, budget / prefilling--);
      budget -= count;
      if (count == 0) continue;
    }
    Part part{.job = job.get(), .position = position};
    part.completes = position + count == std::ssize(job->tokens);
    const bool all = job->request.prompt_logprobs && !job->prompt_reported;
    part.item = {job->sequence,
                 std::span(job->tokens).subspan(static_cast<size_t>(position), static_cast<size_t>(count)),
                 all              ? BatchItem::Logits::All
                 : part.completes ? BatchItem::Logits::Last
                                  : BatchItem::Logits::None};
    parts.push_back(std::move(part));
  }
  return parts;
}

bool Scheduler::fits(std::span<const Part> parts) const {
  int64_t pages = engine_.pages_in_use();
  for (const Part& part : parts)
    pages += pages_of(part.position + std::ssize(part.item.tokens)) - pages_of(part.position);
  return pages <= pages_limit_;
}

// Its tokens run again later, with the same results.
void Scheduler::preempt_youngest() {
  require(running_.size() > 1, "one sequence of at most {} tokens exceeds {} KV pages", context_,
          pages_limit_);
  Job& job = *running_.back();
  engine_.free_sequence(std::exchange(job.sequence, -1));
  if (!job.prompt_reported) job.prompt_logprobs.clear();
  waiting_.splice(waiting_.begin(), running_, std::prev(running_.end()));
  ++counts_.preemptions;
}

// When the batch fails, each part runs alone, so that only those fail that are to blame.
void Scheduler::forward(std::span<Part> parts) {
  try {
    forward_together(parts);
    return;
  } catch (const std::exception& error) {
    if (parts.size() == 1 && !cache_.evict()) {
      parts[0].error = error.what();
      return;
    }
  }
  while (cache_.evict()) {
  }
  for (Part& part : parts) {
    try {
      forward_together({&part, 1});
    } catch (const std::exception& error) {
      part.error = error.what();
    }
  }
}

void Scheduler::forward_together(std::span<Part> parts) {
  std::vector<BatchItem> batch;
  for (Part& part : parts) {
    part.prompt_logprobs.clear();
    batch.push_back(part.item);
  }
  engine_.forward(batch, [&](int64_t item, int64_t token, std::span<const float> logits) {
    take_logits(parts[static_cast<size_t>(item)], token, logits);
  });
}

void Scheduler::take_logits(Part& part, int64_t token, std::span<const float> logits) {
  const GenerationRequest& request = part.job->request;
  const auto next = static_cast<size_t>(part.position + token + 1);
  if (request.prompt_logprobs && next < request.prompt.size())
    part.prompt_logprobs.push_back(
        token_logprob(logits, request.prompt[next], std::max<int64_t>(0, request.top_logprobs)));
  if (next == part.job->tokens.size()) part.logits.assign(logits.begin(), logits.end());
}

void Scheduler::finish(Part& part) {
  Job& job = *part.job;
  try {
    require(part.error.empty(), "{}", part.error);
    std::ranges::move(part.prompt_logprobs, std::back_inserter(job.prompt_logprobs));
    if (!part.completes) return;
    if (job.request.prompt_logprobs && !job.prompt_reported) {
      job.request.listener->on_prompt(std::move(job.prompt_logprobs));
      job.prompt_reported = true;
    }
    if (const auto finish = choose_token(job, part.logits)) end(job, *finish);
  } catch (const std::exception& error) {
    end(job, Finish::Failed, error.what());
  }
}

std::optional<Finish> Scheduler::choose_token(Job& job, std::span<float> logits) {
  GenerationRequest& request = job.request;
  // The last token of a full context has no place in the cache, but needs none.
  const int64_t left = std::min(request.max_tokens - job.generated(), context_ - std::ssize(job.tokens) + 1);
  if (left == 0) return Finish::Length;

  std::vector<float> raw;
  if (request.top_logprobs >= 0) raw.assign(logits.begin(), logits.end());
  if (request.constraint) request.constraint->mask(logits, left);
  const int32_t token = job.sampler.sample(logits);
  job.sampler.accept(token);
  ++counts_.generated_tokens;
  std::optional<TokenLogprob> logprob;
  if (request.top_logprobs >= 0) logprob = token_logprob(raw, token, request.top_logprobs);

  const bool stop = std::ranges::find(request.stop_ids, token) != request.stop_ids.end();
  const bool more = request.listener->on_token(token, stop, logprob ? &*logprob : nullptr);
  if (stop) return Finish::Stop;
  job.tokens.push_back(token);
  const bool complete = request.constraint && request.constraint->accept(token);
  if (complete || !more) return Finish::Stop;
  if (left == 1) return Finish::Length;
  return std::nullopt;
}

void Scheduler::end(Job& job, Finish finish, const std::string& error) {
  job.ended = true;
  if (job.sequence >= 0) {
    if (options_.reuse_prefixes && (finish == Finish::Stop || finish == Finish::Length)) {
      job.tokens.resize(static_cast<size_t>(engine_.length(job.sequence)));
      cache_.put(job.sequence, std::move(job.tokens));
      while (cache_.pages() > pages_limit_ / 2) cache_.evict();
    } else {
      engine_.free_sequence(job.sequence);
    }
  }
  publish();  // whoever learns of the end sees the pages free
  job.request.listener->on_end(finish, error);
  {
    const std::lock_guard lock(mutex_);
    if (!job.started) --queued_;
    --open_;
  }
  idle_.notify_all();
}

void Scheduler::publish() {
  counts_.running = std::ranges::count_if(running_, [](const auto& job) { return !job->ended; });
  counts_.pages_in_use = engine_.pages_in_use();
  counts_.pages_cached = cache_.pages();
  const std::lock_guard lock(mutex_);
  stats_ = counts_;
}

}  // namespace quatrain
