// The engine against the fake-quantised reference on the same tokens: each is the other's check.
//
// Their FP32 sums run in different orders, so now and then a value lies so near a rounding tie that the two
// choose neighbouring codes. In 4 bits such flips grow from layer to layer until single logits differ
// visibly, but neither side is favoured: losses differ like noise. A real fault (a wrong scale, a swapped
// matrix, a missing transform) shifts the mean loss instead. So the check is a paired test of the mean.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "eval/scorer.h"

namespace quatrain {

struct Agreement {
  int64_t tokens = 0;        // compared
  int64_t equal_greedy = 0;  // where both choose the same next token
  double native_loss = 0;    // mean -log p of the text's tokens
  double reference_loss = 0;
  double noise = 0;  // standard error of the mean of the paired loss differences

  /// |native - reference| within four standard errors and 0.02 nats (a hundredth of a typical loss).
  bool passes() const;
  std::string summary() const;
  Json to_json() const;
};

/// Both scorers' losses and greedy choices on `ids` (two or more).
Agreement compare_scorers(Scorer& native, Scorer& reference, std::span<const int32_t> ids);

/// Loads an artifact into the engine and into the reference and compares them on 128 tokens of WikiText-2 (of
/// random ids where the artifact has no tokenizer). Throws when they disagree. Needs libtorch.
Agreement check_artifact(const fs::path& artifact, int threads);

}  // namespace quatrain
