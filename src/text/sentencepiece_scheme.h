// The normalizer, pre-tokenizer and decoder of SentencePiece vocabularies, as a tokenizer.json writes them.
#pragma once

#include <string>

#include "text/tokenizer_definition.h"

namespace quatrain {

struct SentencePieceScheme {
  std::string charsmap;              // precompiled_charsmap; empty for none
  bool dummy_prefix = true;          // a space before the text
  bool only_first = false;           // ... but not again after a special token
  bool collapse_whitespace = false;  // remove_extra_whitespaces
};

/// Sets normalizer, pre_tokenizer and decoder.
void apply_sentencepiece_scheme(const SentencePieceScheme& scheme, TokenizerDefinition& definition);

/// U+2581, which stands for a space.
inline constexpr const char* kSpaceMark = "\u2581";
/// Replaces spaces by marks, and back.
std::string mark_spaces(std::string text);
std::string unmark_spaces(std::string text);

}  // namespace quatrain
