// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/rng.h"

namespace quatrain {

struct SamplerOptions {
  float temperature = 0;  // 0: greedy
  int64_t top_k = 0;      // 0: all
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0, frequency_penalty = 0;
  std::unordered_map<int32_t, float> logit_bias = {};
  uint64_t seed = 0;

  /// Throws with the field that is out of range.
  void validate() const;
};

/// One sequence's sampler: penalties see the tokens accepted so far; the same seed and logits give the same
/// tokens. The order: repetition penalty (positive logits divided, negative multiplied), presence and
/// frequency penalties, bias, temperature, then top-k, top-p and min-p on the probabilities of what is left.
class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);
  /// The chosen id. Ties go to the lowest id. `logits` is changed (penalties and bias are applied in place).
  /// A NaN logit, or none above -infinity, is an Error.
  int32_t sample(std::span<float> logits);
  /// Counts a token for the penalties (prompt and generated ones).
  void accept(int32_t token);

 private:
  void penalize(std::span<float> logits) const;
  size_t keep_most_likely();

  SamplerOptions options_;
  SplitMix64 random_;
  std::unordered_map<int32_t, int> counts_;
  struct Candidate {
    float weight;  // the logit, then exp(logit - largest)
    int32_t id;
  };
  std::vector<Candidate> candidates_;
};

/// log softmax of one entry, accumulated in FP64.
double log_probability(std::span<const float> logits, int32_t token);

}  // namespace quatrain
