// Log-likelihoods of continuations, many items together.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "eval/tasks/requests.h"

namespace quatrain {

struct ContinuationScore {
  double logprob = 0;  // sum of natural logarithms over the continuation's tokens, in FP64
  bool greedy = true;  // each of its tokens has the largest logit
};

/// The requests of each item, scored. What the requests of an item have in common at their beginning runs
/// once, and so does what an item has in common with the one that ran in its place before. `on_item` hears
/// how many items are done. Results do not depend on `batch`, the most items that run together.
std::vector<std::vector<ContinuationScore>> score_continuations(
    Engine& engine, std::span<const std::vector<ScoredRequest>> items, int64_t batch,
    const std::function<void(int64_t done)>& on_items);

}  // namespace quatrain
