// What the model itself thinks of a token, before penalties, bias and temperature.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace quatrain {

struct TokenLogprob {
  int32_t token = 0;
  double logprob = 0;
  std::vector<std::pair<int32_t, double>> top;  // the likeliest tokens, likeliest first
};

/// log softmax of `token` and of the `top` likeliest tokens (ties: the lowest id first).
TokenLogprob token_logprob(std::span<const float> logits, int32_t token, int64_t top);

}  // namespace quatrain
