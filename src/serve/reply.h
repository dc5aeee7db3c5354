// What the scheduler generates for one HTTP request, as events that the request's own thread takes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/scheduler.h"
#include "engine/stop_matcher.h"
#include "serve/metrics.h"
#include "text/tokenizer.h"

namespace quatrain {

struct ReplyEvent {
  enum class Kind { Prompt, Piece, End };
  Kind kind = Kind::Piece;
  size_t choice = 0;
  std::string text = {};  // Piece, End: final text, often empty (part of a character, or of a stop text)
  std::vector<TokenLogprob> logprobs = {};  // Prompt: of its tokens but the first; Piece: of its token
  bool stop_token = false;                  // Piece: the token ends the reply and is no part of its text
  Finish finish = Finish::Stop;             // End
  std::string error = {};                   // End
  int64_t reused = 0;                       // End: tokens of the prompt that were in the cache
};

/// The choices of one HTTP request. Ending its life cancels those that still run.
class Reply {
 public:
  /// Submits one request a choice; their listeners are set here. Throws as Scheduler::submit.
  Reply(Scheduler& scheduler, Metrics& metrics, const Tokenizer& tokenizer,
        std::vector<GenerationRequest> requests, const std::vector<std::string>& stops, bool special);
  ~Reply();
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;

  /// The next event; nothing when none comes within `wait`.
  std::optional<ReplyEvent> next(std::chrono::milliseconds wait);
  size_t choices() const { return ids_.size(); }
  /// Choices whose End was not taken yet.
  size_t open() const { return open_; }
  /// Of choice i, as far as events were taken: every generated token, the stop token included.
  int64_t generated(size_t choice) const { return generated_[choice]; }

  struct Mailbox {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<ReplyEvent> events;
    void put(ReplyEvent event);
  };

 private:
  Scheduler& scheduler_;
  std::shared_ptr<Mailbox> mailbox_;
  std::vector<int64_t> ids_;
  std::vector<int64_t> generated_;
  size_t open_ = 0;
};

/// "stop" or "length"; an ApiError for an end that is no answer.
std::string finish_reason(const ReplyEvent& end);

}  // namespace quatrain
