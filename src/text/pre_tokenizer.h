// How a text is cut into the words that the model merges within: the "pre_tokenizer" of a tokenizer.json.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace quatrain {

/// The expression of GPT-2, which ByteLevel applies.
extern const std::string_view kGpt2Pattern;

/// A part of the text on its way to the model. Valid UTF-8.
struct TextPiece {
  std::string text;
  bool first = false;      // begins where the whole text begins
  bool continued = false;  // goes on after an invalid byte: nothing is put before it
};

class PreTokenizer {
 public:
  /// From the object of a tokenizer.json, or null for none. A type that is not known is refused by name.
  PreTokenizer(const Json& description, const std::string& where);

  /// The words of one piece, none of them empty.
  std::vector<TextPiece> split(TextPiece piece) const;

 private:
  using Step = std::function<void(TextPiece, std::vector<TextPiece>&)>;
  void add(const Json& description, const std::string& where);

  std::vector<Step> steps_;
};

}  // namespace quatrain
