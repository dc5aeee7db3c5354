#include "quant/calibration.h"

#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "model/checkpoint.h"
#include "text/corpus.h"

namespace quatrain {

std::vector<std::vector<int32_t>> choose_samples(std::span<const int32_t> tokens, int64_t samples,
                                                 int64_t length, uint64_t seed, const std::string& text) {
  const int64_t count = std::ssize(tokens), windows = count / length;
  require(windows >= 1,
          "{}: {} tokens are fewer than one calibration sample of {}; give a longer text or set "
          "calibration.length",
          text, count, length);
  SplitMix64 random(seed);
  std::vector<int64_t> starts(static_cast<size_t>(windows));
  for (int64_t w = 0; w < windows; ++w) starts[static_cast<size_t>(w)] = w * length;
  for (size_t i = starts.size(); i > 1; --i) std::swap(starts[i - 1], starts[random.below(i)]);
  while (std::ssize(starts) < samples)
    starts.push_back(static_cast<int64_t>(random.below(static_cast<uint64_t>(count - length + 1))));
  starts.resize(static_cast<size_t>(samples));
  std::vector<std::vector<int32_t>> chosen;
  for (const int64_t start : starts)
    chosen.emplace_back(tokens.begin() + start, tokens.begin() + start + length);
  return chosen;
}

CalibrationSamples load_calibration(const Recipe& recipe, const fs::path& model) {
  const Recipe::Calibration& calibration = recipe.calibration;
  const Corpus corpus = load_corpus(calibration.text);
  const std::vector<int32_t> tokens = load_model_tokenizer(model)->encode_sequence(corpus.text);
  return {choose_samples(tokens, calibration.samples, calibration.length, static_cast<uint64_t>(recipe.seed),
                         corpus.name),
          corpus.name, corpus.sha256, std::ssize(tokens)};
}

}  // namespace quatrain
