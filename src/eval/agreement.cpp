#include "eval/agreement.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "engine/sampler.h"

namespace quatrain {
namespace {

int32_t greedy(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<std::vector<float>> all_logits(Scorer& scorer, const std::vector<int32_t>& ids) {
  std::vector<std::vector<float>> rows;
  scorer.score(ids, 0,
               [&](int64_t, std::span<const float> row) { rows.emplace_back(row.begin(), row.end()); });
  return rows;
}

}  // namespace

std::string Agreement::summary() const {
  return fmt::format(
      "check: engine and reference choose the same token at {} of {} positions, logits differ by {:.2f} %",
      equal_greedy, tokens, 100 * relative_error);
}

Json Agreement::to_json() const {
  return {{"tokens", tokens},
          {"equal_greedy", equal_greedy},
          {"relative_error", relative_error},
          {"perplexity_ratio", perplexity_ratio}};
}

Agreement compare_scorers(Scorer& native, Scorer& reference, int64_t prompt_tokens, int64_t new_tokens) {
  SplitMix64 random(7);
  const auto vocabulary = static_cast<uint64_t>(native.config().vocabulary);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < prompt_tokens; ++i) ids.push_back(static_cast<int32_t>(random.below(vocabulary)));
  for (int64_t i = 0; i < new_tokens; ++i) {
    int32_t next = 0;
    native.score(ids, static_cast<int64_t>(ids.size()) - 1,
                 [&](int64_t, std::span<const float> logits) { next = greedy(logits); });
    ids.push_back(next);
  }
  const auto ours = all_logits(native, ids);
  const auto theirs = all_logits(reference, ids);

  Agreement agreement;
  double difference = 0, reference_power = 0, log_ratio = 0;
  for (size_t t = 0; t < ids.size(); ++t) {
    double mean = 0;
    for (const float value : theirs[t]) mean += value;
    mean /= static_cast<double>(vocabulary);
    for (size_t v = 0; v < vocabulary; ++v) {
      const double delta = double{ours[t][v]} - theirs[t][v];
      const double centred = theirs[t][v] - mean;
      difference += delta * delta;
      reference_power += centred * centred;
    }
    agreement.equal_greedy += greedy(ours[t]) == greedy(theirs[t]) ? 1 : 0;
    if (t + 1 < ids.size())
      log_ratio += log_probability(theirs[t], ids[t + 1]) - log_probability(ours[t], ids[t + 1]);
  }
  agreement.tokens = static_cast<int64_t>(ids.size());
  agreement.relative_error = std::sqrt(difference / reference_power);
  agreement.perplexity_ratio = std::exp(log_ratio / static_cast<double>(ids.size() - 1));
  return agreement;
}

Agreement check_artifact(const fs::path& artifact, int threads) {
  const auto native = make_scorer(artifact, {"native", threads});
  const auto reference = make_scorer(artifact, {"reference", threads});
  const Agreement agreement = compare_scorers(*native, *reference);
  require(std::isfinite(agreement.relative_error) && agreement.relative_error < 0.25,
          "{}: the engine and the fake-quantised reference disagree (logits differ by {:.1f} %); the "
          "artifact is kept "
          "for inspection but must not be used",
          artifact.string(), 100 * agreement.relative_error);
  return agreement;
}

}  // namespace quatrain
