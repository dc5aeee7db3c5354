#include "eval/tasks/continuation_scorer.h"

#include <algorithm>

#include "engine/sampler.h"
#include "eval/tasks/lanes.h"

namespace quatrain {
namespace {

/// One item while it runs. Of a request, all ids but the last are inputs; the logits behind input t predict
/// id t + 1.
class RunningItem {
 public:
  explicit RunningItem(const std::vector<ScoredRequest>& requests)
      : requests_(requests), scores(requests.size()) {
    shared_ = std::ssize(requests[0].ids) - 1;
    first_scored_ = shared_;
    for (const ScoredRequest& request : requests) {
      const auto& ids = requests[0].ids;
      const auto most = static_cast<int64_t>(std::min(static_cast<size_t>(shared_), request.ids.size() - 1));
      shared_ = std::mismatch(ids.begin(), ids.begin() + most, request.ids.begin()).first - ids.begin();
      first_scored_ = std::min(first_scored_, request.first - 1);
    }
  }

  /// Inputs that all requests share, and how many of them need no logits.
  std::span<const int32_t> shared() const {
    return std::span(requests_[0].ids).first(static_cast<size_t>(shared_));
  }
  int64_t silent_shared() const { return std::min(shared_, first_scored_); }

  size_t requests() const { return requests_.size(); }
  /// A request's own inputs behind the shared ones: those before its first scored position, and the others.
  std::span<const int32_t> silent_own(size_t request) const {
    const int64_t begin = shared_, end = std::max(begin, requests_[request].first - 1);
    return inputs(request, begin, end);
  }
  std::span<const int32_t> scored_own(size_t request) const {
    return inputs(request, std::max(shared_, requests_[request].first - 1),
                  std::ssize(requests_[request].ids) - 1);
  }

  void take_shared(int64_t position, std::span<const float> logits) {
    for (size_t r = 0; r < requests_.size(); ++r) take_own(r, position, logits);
  }
  void take_own(size_t request, int64_t position, std::span<const float> logits) {
    const ScoredRequest& scored = requests_[request];
    if (position < scored.first - 1 || position + 1 >= std::ssize(scored.ids)) return;
    const int32_t next = scored.ids[static_cast<size_t>(position) + 1];
    ContinuationScore& score = scores[request];
    score.logprob += log_probability(logits, next);
    score.greedy =
        score.greedy && logits[static_cast<size_t>(next)] >= *std::max_element(logits.begin(), logits.end());
  }

 private:
  std::span<const int32_t> inputs(size_t request, int64_t begin, int64_t end) const {
    return std::span(requests_[request].ids)
        .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }

  const std::vector<ScoredRequest>& requests_;
  int64_t shared_ = 0, first_scored_ = 0;

 public:
  std::vector<ContinuationScore> scores;
};

using Logits = BatchItem::Logits;

void run_shared(Lanes& lanes, std::vector<RunningItem>& items) {
  std::vector<Lanes::Part> silent, scored;
  for (size_t i = 0; i < items.size(); ++i) {
    const auto lane = static_cast<int64_t>(i);
    const auto tokens = items[i].shared();
    const auto quiet = static_cast<size_t>(items[i].silent_shared());
    const auto kept = static_cast<size_t>(lanes.keep_prefix(lane, tokens, items[i].silent_shared()));
    silent.push_back({lane, tokens.subspan(kept, quiet - kept), Logits::None});
    scored.push_back({lane, tokens.subspan(quiet), Logits::All});
  }
  lanes.feed(silent, nullptr);
  lanes.feed(scored, [&](int64_t lane, int64_t position, std::span<const float> logits) {
    items[static_cast<size_t>(lane)].take_shared(position, logits);
  });
}

void run_own(Lanes& lanes, std::vector<RunningItem>& items, size_t request) {
  std::vector<Lanes::Part> silent, scored;
  for (size_t i = 0; i < items.size(); ++i) {
    if (request >= items[i].requests()) continue;
    const auto lane = static_cast<int64_t>(i);
    lanes.truncate(lane, std::ssize(items[i].shared()));
    silent.push_back({lane, items[i].silent_own(request), Logits::None});
    scored.push_back({lane, items[i].scored_own(request), Logits::All});
  }
  lanes.feed(silent, nullptr);
  lanes.feed(scored, [&](int64_t lane, int64_t position, std::span<const float> logits) {
    items[static_cast<size_t>(lane)].take_own(request, position, logits);
  });
}

}  // namespace

std::vector<std::vector<ContinuationScore>> score_continuations(
    Engine& engine, std::span<const std::vector<ScoredRequest>> items, int64_t batch,
    const std::function<void(int64_t done)>& on_items) {
  int64_t longest = 1;
  for (const auto& requests : items)
    for (const ScoredRequest& request : requests) longest = std::max(longest, std::ssize(request.ids));
  Lanes lanes(engine, longest, batch);
  std::vector<std::vector<ContinuationScore>> results;
  while (results.size() < items.size()) {
    std::vector<RunningItem> running;
    for (size_t i = results.size(); i < items.size() && std::ssize(running) < lanes.count(); ++i)
      running.emplace_back(items[i]);
    run_shared(lanes, running);
    size_t most = 0;
    for (const RunningItem& item : running) most = std::max(most, item.requests());
    for (size_t request = 0; request < most; ++request) run_own(lanes, running, request);
    for (RunningItem& item : running) results.push_back(std::move(item.scores));
    on_items(std::ssize(results));
  }
  return results;
}

}  // namespace quatrain
