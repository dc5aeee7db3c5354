#include "eval/agreement.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "engine/sampler.h"
#include "model/checkpoint.h"
#include "text/corpus.h"

namespace quatrain {
namespace {

constexpr size_t kCheckTokens = 128;

struct Scores {
  std::vector<double> loss;
  std::vector<int64_t> greedy;
};

Scores score_all(Scorer& scorer, std::span<const int32_t> ids) {
  Scores scores;
  scorer.score(ids.first(ids.size() - 1), 0, [&](int64_t position, std::span<const float> logits) {
    scores.loss.push_back(-log_probability(logits, ids[static_cast<size_t>(position) + 1]));
    scores.greedy.push_back(std::max_element(logits.begin(), logits.end()) - logits.begin());
  });
  return scores;
}

std::vector<int32_t> check_tokens(const fs::path& artifact, int64_t vocabulary) {
  std::vector<int32_t> ids;
  try {
    const auto tokenizer = load_model_tokenizer(artifact);
    ids = tokenizer->encode_sequence(load_corpus("wikitext2-train").text.substr(0, 8 * kCheckTokens), false);
  } catch (const Error&) {
    SplitMix64 random(7);  // a model without a tokenizer, or an installation without its texts
    while (ids.size() < kCheckTokens)
      ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocabulary))));
  }
  ids.resize(std::min(ids.size(), kCheckTokens));
  return ids;
}

}  // namespace

bool Agreement::passes() const {
  return std::abs(native_loss - reference_loss) <= 4 * noise + 0.02;  // false for NaN
}

std::string Agreement::summary() const {
  return fmt::format(
      "check: loss {:.3f} in the engine, {:.3f} in the reference (noise {:.3f}); {} of {} greedy tokens "
      "equal",
      native_loss, reference_loss, noise, equal_greedy, tokens);
}

Json Agreement::to_json() const {
  return {{"tokens", tokens},
          {"equal_greedy", equal_greedy},
          {"native_loss", native_loss},
          {"reference_loss", reference_loss},
          {"noise", noise}};
}

Agreement compare_scorers(Scorer& native, Scorer& reference, std::span<const int32_t> ids) {
  require(ids.size() >= 2, "comparing two engines needs two tokens or more");
  const Scores ours = score_all(native, ids);
  const Scores theirs = score_all(reference, ids);
  Agreement agreement;
  const auto count = static_cast<double>(ours.loss.size());
  double sum = 0, sum_squares = 0;
  for (size_t i = 0; i < ours.loss.size(); ++i) {
    const double difference = ours.loss[i] - theirs.loss[i];
    sum += difference;
    sum_squares += difference * difference;
    agreement.native_loss += ours.loss[i] / count;
    agreement.reference_loss += theirs.loss[i] / count;
    agreement.equal_greedy += ours.greedy[i] == theirs.greedy[i] ? 1 : 0;
  }
  agreement.tokens = static_cast<int64_t>(ours.loss.size());
  agreement.noise = std::sqrt(std::max(0.0, sum_squares - sum * sum / count)) / count;
  return agreement;
}

Agreement check_artifact(const fs::path& artifact, int threads) {
  const auto native = make_scorer(artifact, {"native", {.threads = threads}});
  const auto reference = make_scorer(artifact, {"reference", {.threads = threads}});
  const auto ids = check_tokens(artifact, native->config().vocabulary);
  const Agreement agreement = compare_scorers(*native, *reference, ids);
  require(std::isfinite(agreement.native_loss) && std::isfinite(agreement.reference_loss),
          "{}: the loss of the quantised model is not finite: values overflow in it; look for huge weights "
          "in the "
          "original, or for a recipe that keeps its last layers wider",
          artifact.string());
  require(agreement.passes(),
          "{}: the engine and the fake-quantised reference disagree ({}); the artifact is kept for "
          "inspection but must "
          "not be used",
          artifact.string(), agreement.summary());
  return agreement;
}

}  // namespace quatrain
