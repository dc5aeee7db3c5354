// Finds special and other added tokens in a text before the model sees it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/byte_trie.h"
#include "text/normalizer.h"
#include "text/tokenizer_definition.h"

namespace quatrain {

class AddedTokens {
 public:
  /// Those of `tokens` whose field `normalized` is the given one. For normalized ones, what is looked for is
  /// the content as `normalizer` leaves it.
  AddedTokens(const std::vector<AddedToken>& tokens, bool normalized, const Normalizer& normalizer);

  struct Part {
    size_t begin, end;
    int32_t id;  // -1: ordinary text
  };
  /// The text in order: ordinary parts (never empty) and tokens. The leftmost match is taken, the longest of
  /// those that begin there. Special tokens match only with `special`.
  std::vector<Part> split(std::string_view text, bool special) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t at, bool special, size_t& size) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;
  std::vector<bool> first_bytes_ = std::vector<bool>(256, false);
};

}  // namespace quatrain
