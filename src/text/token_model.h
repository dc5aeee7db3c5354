// The model inside a tokenizer: the ids of one word.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "text/tokenizer_definition.h"
#include "text/vocabulary.h"

namespace quatrain {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  /// Appends the ids of `word` (valid UTF-8, as the normalizer and pre-tokenizer left it).
  virtual void encode(std::string_view word, std::vector<int32_t>& out) const = 0;
};

/// What stands for characters outside the vocabulary: the byte tokens where the vocabulary has all of them,
/// the unknown token, or nothing.
class UnknownText {
 public:
  UnknownText(const TokenizerDefinition& definition, const Vocabulary& vocabulary);
  /// Appends what stands for `text`, one or more characters that follow one another.
  void append(std::string_view text, std::vector<int32_t>& out) const;
  /// The id that stands for one byte that is no text; -1 when there is none.
  int32_t byte(uint8_t value) const { return bytes_[value]; }

 private:
  bool fallback_ = false;
  bool fuse_;
  int32_t unknown_;
  std::array<int32_t, 256> bytes_;
};

/// Both refer to `vocabulary`, which must outlive them.
std::unique_ptr<TokenModel> make_bpe(const TokenizerDefinition& definition, const Vocabulary& vocabulary);
std::unique_ptr<TokenModel> make_unigram(const TokenizerDefinition& definition, const Vocabulary& vocabulary);

}  // namespace quatrain
