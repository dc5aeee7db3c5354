#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>

#include "base/error.h"
#include "base/isa_clones.h"
#include "ops/argmax.h"

namespace quatrain {
namespace {

constexpr size_t kLanes = 16;  // partial results, so that reductions are SIMD without reordering

// exp(x) for x <= 0 to 2e-16 of it, 0 to FP64's range below -700: x = n ln 2 + r, |r| <= ln 2 / 2, and 14
// terms of the series. n comes from the low bits of a sum that rounds to whole numbers.
inline double exponential(double x) {
  const double bounded = x < -700.0 ? -700.0 : x;
  const double shifted = bounded * 1.4426950408889634 + 0x1.8p52;
  const double n = shifted - 0x1.8p52;
  const double r = (bounded - n * 0x1.62e42fefa0000p-1) - n * 0x1.cf79abc9e3b39p-40;
  double sum = 1.0 / 6227020800.0;
  for (const double term :
       {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0,
        1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0})
    sum = sum * r + term;
  return sum * std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);
}

QUATRAIN_ISA_CLONES float largest_of(const float* x, size_t count) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -FLT_MAX;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
  for (; i < count; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  float largest = lanes[0];
  for (const float lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
}

QUATRAIN_ISA_CLONES double sum_of_exponentials(const float* x, size_t count, double top) {
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += exponential(double{x[i + lane]} - top);
  for (; i < count; ++i) lanes[0] += exponential(double{x[i]} - top);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

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
    const auto at = [&](size_t i) { return candidates_.begin() + static_cast<int64_t>(i); };
    const auto sum_of = [&](size_t first, size_t last) {
      double sum = 0;
      for (size_t i = first; i < last; ++i) sum += candidates_[i].weight;
      return sum;
    };
    const double wanted = options_.top_p * total;
    // Tokens of less weight than this are together less than what the nucleus leaves out, so none of them is
    // in it. Here and below the factor is room for rounding: sums in other orders differ.
    const double left_out = sum_of(0, kept) - wanted;
    if (left_out > 0) {
      const double least = 0.999 * left_out / static_cast<double>(kept);
      kept = static_cast<size_t>(
          std::partition(at(0), at(kept), [&](const Candidate& c) { return c.weight >= least; }) - at(0));
    }
    // Halves of the rest, until the nucleus ends in a small one.
    constexpr size_t kSmall = 256;
    double before = 0;
    size_t first = 0, last = kept;
    while (last - first > kSmall) {
      const size_t middle = first + (last - first) / 2;
      std::nth_element(at(first), at(middle), at(last), likelier);
      const double half = sum_of(first, middle);
      if (before + half >= wanted * (1 + 1e-9))
        last = middle;
      else
        before += half, first = middle;
    }
    std::sort(at(0), at(last), likelier);
    double sum = 0;
    for (size_t i = 0; i < last; ++i) {
      sum += candidates_[i].weight;
      if (sum >= wanted) return i + 1;
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
  const double top = largest_of(logits.data(), logits.size());
  return logits[static_cast<size_t>(token)] - top -
         std::log(sum_of_exponentials(logits.data(), logits.size(), top));
}

}  // namespace quatrain
