// What a tokenizer does to a text before it splits it: the "normalizer" of a tokenizer.json.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace quatrain {

class Normalizer {
 public:
  /// From the object of a tokenizer.json, or null for none. A type that is not known is refused by name.
  Normalizer(const Json& description, const std::string& where);

  /// `text` must be valid UTF-8. With `continued` it goes on after something that was no text (an invalid
  /// byte): nothing is put before it.
  std::string apply(std::string text, bool continued) const;

  bool empty() const { return steps_.empty(); }

 private:
  void add(const Json& description, const std::string& where);

  std::vector<std::function<std::string(std::string, bool continued)>> steps_;
};

}  // namespace quatrain
