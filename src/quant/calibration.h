// Calibration text as token sequences.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "quant/recipe.h"

namespace quatrain {

struct CalibrationSamples {
  std::vector<std::vector<int32_t>> ids;  // each of the recipe's length
  std::string text, sha256;               // name of the text, hash of its bytes
  int64_t text_tokens = 0;
};

/// Samples of `length` tokens: the windows of the text that do not overlap in an order drawn from `seed`, and
/// past their number windows at random starts. Throws when the text is shorter than one sample.
std::vector<std::vector<int32_t>> choose_samples(std::span<const int32_t> tokens, int64_t samples,
                                                 int64_t length, uint64_t seed, const std::string& text);

/// recipe.calibration's text, tokenised once by the tokenizer of `model`, cut into samples.
CalibrationSamples load_calibration(const Recipe& recipe, const fs::path& model);

}  // namespace quatrain
