#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/argmax.h"

namespace quatrain {

void SamplerOptions::validate() const {
  require(temperature >= 0 && std::isfinite(temperature), "temperature: {} is not 0 or above", temperature);
  require(top_k >= 0, "top_k: {} is negative; 0 keeps all tokens", top_k);
  require(top_p > 0 && top_p <= 1, "top_p: {} is not in (0, 1]", top_p);
  require(min_p >= 0 && min_p < 1, "min_p: {} is not in [0, 1)", min_p);
  require(repetition_penalty > 0 && std::isfinite(repetition_penalty),
          "repetition_penalty: {} is not above 0", repetition_penalty);
  require(std::isfinite(presence_penalty), "presence_penalty: {} is not finite", presence_penalty);
  require(std::isfinite(frequency_penalty), "frequency_penalty: {} is not finite", frequency_penalty);
  for (const auto& [token, bias] : logit_bias) {
    require(token >= 0, "logit_bias: token {} is negative", token);
    require(!std::isnan(bias) && bias < INFINITY,
            "logit_bias: {} for token {} is not a finite number or -infinity", bias, token);
  }
}

Sampler::Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {
  options_.validate();
}

void Sampler::accept(int32_t token) {
  ++counts_[token];
}

void Sampler::penalize(std::span<float> logits) const {
  for (const auto& [token, count] : counts_) {
    if (token < 0 || static_cast<size_t>(token) >= logits.size()) continue;
    float& logit = logits[static_cast<size_t>(token)];
    if (options_.repetition_penalty != 1)
      logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    logit -= options_.presence_penalty + options_.frequency_penalty * static_cast<float>(count);
  }
  for (const auto& [token, bias] : options_.logit_bias)
    if (static_cast<size_t>(token) < logits.size()) logits[static_cast<size_t>(token)] += bias;
}

int32_t Sampler::sample(std::span<float> logits) {
  penalize(logits);
  require(!logits.empty(), "no token can be sampled: there are no logits");
  const auto best = static_cast<size_t>(ops::argmax(logits));
  require(!std::isnan(logits[best]), "the logit of token {} is NaN", best);
  require(std::isfinite(logits[best]), "no token can be sampled: the largest logit is {}", logits[best]);
  if (options_.temperature == 0) return static_cast<int32_t>(best);

  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i)
    candidates_.push_back(
        {std::exp((logits[i] - logits[best]) / options_.temperature), static_cast<int32_t>(i)});
  const size_t kept = keep_most_likely();
  double total = 0;
  for (size_t i = 0; i < kept; ++i) total += candidates_[i].weight;
  double rest = random_.uniform() * total;
  for (size_t i = 0; i + 1 < kept; ++i) {
    rest -= candidates_[i].weight;
    if (rest < 0) return candidates_[i].id;
  }
  return candidates_[kept - 1].id;
}

// Applies top-k, top-p and min-p: the first candidates, as many as returned, are what is left.
size_t Sampler::keep_most_likely() {
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
  };
  size_t kept = candidates_.size();
  // Probabilities relative to the largest are the weights themselves: min-p needs no order, and neither do
  // top-k and top-p mind if it comes first, since all three keep a head of the same order. Only top-p's total
  // counts what min-p drops.
  if (options_.top_k > 0 && static_cast<size_t>(options_.top_k) < kept) {
    kept = static_cast<size_t>(options_.top_k);
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(kept) - 1,
                     candidates_.end(), likelier);
  }
  double total = 0;
  for (size_t i = 0; i < kept; ++i) total += candidates_[i].weight;
  if (options_.min_p > 0) {
    const auto end = std::partition(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(kept),
                                    [&](const Candidate& c) { return c.weight >= options_.min_p; });
    kept = static_cast<size_t>(end - candidates_.begin());
  }
  if (options_.top_p < 1) {
    // Sorted piece by piece: the nucleus is mostly small against the vocabulary.
    constexpr size_t kPiece = 256;
    const double wanted = options_.top_p * total;
    double sum = 0;
    for (size_t sorted = 0; sorted < kept; sorted += kPiece) {
      const size_t end = std::min(sorted + kPiece, kept);
      std::partial_sort(candidates_.begin() + static_cast<int64_t>(sorted),
                        candidates_.begin() + static_cast<int64_t>(end),
                        candidates_.begin() + static_cast<int64_t>(kept), likelier);
      for (size_t i = sorted; i < end; ++i) {
        sum += candidates_[i].weight;
        if (sum >= wanted) return i + 1;
      }
    }
  }
  // The order of nth_element and partition is the library's own; the draw must not follow it.
  if (kept < candidates_.size())
    std::sort(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(kept), likelier);
  return kept;
}

double log_probability(std::span<const float> logits, int32_t token) {
  require(token >= 0 && static_cast<size_t>(token) < logits.size(), "token {} is not in a vocabulary of {}",
          token, logits.size());
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return logits[static_cast<size_t>(token)] - top - std::log(sum);
}

}  // namespace quatrain
