// From a token's spelling to the bytes it stands for: the "decoder" of a tokenizer.json.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace quatrain {

class TokenDecoder {
 public:
  /// From the object of a tokenizer.json, or null for spellings that are the text. A type that is not known
  /// is refused by name.
  TokenDecoder(const Json& description, const std::string& where);

  /// `literal`: an added token, which a byte-level vocabulary spells as it is.
  std::string bytes(std::string_view spelling, bool literal) const;
  /// Decoding drops one space at the very beginning of a text.
  bool strips_leading_space() const { return strips_leading_space_; }

 private:
  void add(const Json& description, const std::string& where);

  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool strips_leading_space_ = false;
  std::vector<std::pair<std::string, std::string>> replacements_;
};

}  // namespace quatrain
