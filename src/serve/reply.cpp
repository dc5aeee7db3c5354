#include "serve/reply.h"

#include <utility>

#include "serve/api_error.h"

namespace quatrain {
namespace {

using Clock = std::chrono::steady_clock;

/// Called by the scheduler's thread; outlives its Reply when that is cancelled.
class Choice : public GenerationListener {
 public:
  Choice(std::shared_ptr<Reply::Mailbox> mailbox, size_t index, Metrics& metrics, const Tokenizer& tokenizer,
         const std::vector<std::string>& stops, bool special)
      : mailbox_(std::move(mailbox)),
        index_(index),
        metrics_(metrics),
        tokenizer_(tokenizer),
        decoder_(tokenizer, special),
        matcher_(stops) {}

  void on_start(int64_t reused) override {
    reused_ = reused;
    metrics_.queue_seconds(seconds_since(submitted_));
  }

  void on_prompt(std::vector<TokenLogprob> logprobs) override {
    ReplyEvent event{.kind = ReplyEvent::Kind::Prompt, .choice = index_};
    event.logprobs = std::move(logprobs);
    mailbox_->put(std::move(event));
  }

  bool on_token(int32_t token, bool stop, const TokenLogprob* logprob) override {
    const auto now = Clock::now();
    if (last_ == Clock::time_point()) {
      metrics_.first_token_seconds(std::chrono::duration<double>(now - submitted_).count());
    } else {
      metrics_.next_token_seconds(std::chrono::duration<double>(now - last_).count());
    }
    last_ = now;
    ReplyEvent event{.choice = index_, .stop_token = stop};
    if (!stop && token < tokenizer_.size()) event.text = matcher_.push(decoder_.push(token));
    if (logprob != nullptr) event.logprobs.push_back(*logprob);
    mailbox_->put(std::move(event));
    return !matcher_.matched();
  }

  void on_end(Finish finish, const std::string& error) override {
    metrics_.finished(finish, seconds_since(submitted_));
    ReplyEvent event{
        .kind = ReplyEvent::Kind::End, .choice = index_, .finish = finish, .error = error, .reused = reused_};
    event.text = matcher_.push(decoder_.finish());
    event.text += matcher_.finish();
    if (matcher_.matched()) event.finish = Finish::Stop;
    mailbox_->put(std::move(event));
  }

 private:
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  std::shared_ptr<Reply::Mailbox> mailbox_;
  size_t index_;
  Metrics& metrics_;
  const Tokenizer& tokenizer_;  // its ids may be fewer than the model's, whose vocabulary is padded
  StreamDecoder decoder_;
  StopMatcher matcher_;
  int64_t reused_ = 0;
  Clock::time_point submitted_ = Clock::now(), last_{};
};

}  // namespace

void Reply::Mailbox::put(ReplyEvent event) {
  {
    const std::lock_guard lock(mutex);
    events.push_back(std::move(event));
  }
  changed.notify_one();
}

Reply::Reply(Scheduler& scheduler, Metrics& metrics, const Tokenizer& tokenizer,
             std::vector<GenerationRequest> requests, const std::vector<std::string>& stops, bool special)
    : scheduler_(scheduler),
      mailbox_(std::make_shared<Mailbox>()),
      generated_(requests.size()),
      open_(requests.size()) {
  for (size_t i = 0; i < requests.size(); ++i)
    requests[i].listener = std::make_shared<Choice>(mailbox_, i, metrics, tokenizer, stops, special);
  ids_ = scheduler_.submit(std::move(requests));
}

Reply::~Reply() {
  if (open_ == 0) return;
  for (const int64_t id : ids_) scheduler_.cancel(id);
}

std::optional<ReplyEvent> Reply::next(std::chrono::milliseconds wait) {
  ReplyEvent event;
  {
    std::unique_lock lock(mailbox_->mutex);
    if (!mailbox_->changed.wait_for(lock, wait, [this] { return !mailbox_->events.empty(); }))
      return std::nullopt;
    event = std::move(mailbox_->events.front());
    mailbox_->events.pop_front();
  }
  if (event.kind == ReplyEvent::Kind::Piece) ++generated_[event.choice];
  if (event.kind == ReplyEvent::Kind::End) --open_;
  return event;
}

std::string finish_reason(const ReplyEvent& end) {
  switch (end.finish) {
    case Finish::Stop:
      return "stop";
    case Finish::Length:
      return "length";
    case Finish::Deadline:
      throw ApiError(504, "server_error", "timeout", "the request took longer than the server allows");
    case Finish::Cancelled:
      throw ApiError(503, "server_error", "shutting_down", "the server is shutting down");
    case Finish::Failed:
      break;
  }
  throw ApiError(500, "server_error", "generation_failed", end.error);
}

}  // namespace quatrain
