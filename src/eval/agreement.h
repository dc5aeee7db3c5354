// The engine against the fake-quantised reference on the same tokens: each is the other's check.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "eval/scorer.h"

namespace quatrain {

struct Agreement {
  int64_t tokens = 0;
  int64_t equal_greedy = 0;     // positions where both choose the same next token
  double relative_error = 0;    // rms of the logit differences over the rms of the centred reference logits
  double perplexity_ratio = 1;  // of the generated tokens, native / reference

  std::string summary() const;
  Json to_json() const;
};

/// Lets `native` continue `prompt_tokens` random tokens greedily for `new_tokens`, then compares both
/// scorers' logits at every position of the result.
Agreement compare_scorers(Scorer& native, Scorer& reference, int64_t prompt_tokens = 8,
                          int64_t new_tokens = 24);

/// Loads an artifact into the engine and into the reference and compares them. A relative error above 25 % (a
/// wrong scale, a swapped matrix or a missing transform gives 100 % and more; code flips at rounding ties
/// stay below 10 %) is an Error. Needs libtorch.
Agreement check_artifact(const fs::path& artifact, int threads);

}  // namespace quatrain
