// The merges that SentencePiece's BPE implies: it has no list of them, any two neighbours whose joined text
// is a piece may merge, and the piece with the highest score goes first.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer_definition.h"
#include "text/vocabulary.h"

namespace quatrain {

struct ScoreMerge {
  int32_t left, right, result;
  int32_t rank;  // results of equal score have equal ranks
};

/// All merges within the plain tokens, best first; among equals by result, left and right id.
std::vector<ScoreMerge> score_merges(const std::vector<float>& scores, const std::vector<bool>& plain,
                                     const Vocabulary& vocabulary);

}  // namespace quatrain
