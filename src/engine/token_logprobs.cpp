#include "engine/token_logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace quatrain {

TokenLogprob token_logprob(std::span<const float> logits, int32_t token, int64_t top) {
  require(token >= 0 && static_cast<size_t>(token) < logits.size(), "token {} is not in a vocabulary of {}",
          token, logits.size());
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  const double normalizer = largest + std::log(sum);

  TokenLogprob result{token, logits[static_cast<size_t>(token)] - normalizer, {}};
  if (top == 0) return result;
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto count = std::min<size_t>(static_cast<size_t>(top), order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(count), order.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  for (size_t i = 0; i < count; ++i)
    result.top.emplace_back(order[i], logits[static_cast<size_t>(order[i])] - normalizer);
  return result;
}

}  // namespace quatrain
