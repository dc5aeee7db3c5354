// The pieces of JSON (RFC 8259) as grammar rules. Narrower than JSON where a model could run on for ever or
// where readers differ: numbers of at most 15 digits and two in the exponent, little white space, no escaped
// surrogates.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "serve/grammar/grammar.h"

namespace quatrain {

class JsonGrammar {
 public:
  using Node = Grammar::Node;

  GrammarBuilder& builder() { return builder_; }

  // From a node over one such piece to a new node.
  Node white_space(Node from) { return builder_.call(from, rule(kSpace)); }
  Node string(Node from) { return builder_.call(from, rule(kString)); }
  /// One character of a string: any, as it is or escaped.
  Node string_character(Node from, Node to = -1) { return builder_.call(from, rule(kCharacter), to); }
  Node number(Node from) { return builder_.call(from, rule(kNumber)); }
  Node integer(Node from) { return builder_.call(from, rule(kInteger)); }
  Node value(Node from) { return builder_.call(from, rule(kValue)); }
  Node object(Node from) { return builder_.call(from, rule(kObject)); }
  Node array(Node from) { return builder_.call(from, rule(kArray)); }
  /// A literal string, quoted and escaped.
  Node quoted(Node from, const std::string& text);
  /// Between low and high decimal digits.
  Node digits(Node from, int low, int high);
  /// A code point in [low, high] of a string, written the one way that every writer uses.
  Node plain_character(Node from, uint32_t low, uint32_t high, Node to);
  /// { "key": value, ... } with keys of any kind and values of `value`.
  Node map(Node from, Node value);
  /// [value, ...]
  Node list(Node from, Node value);

 private:
  enum Kind { kSpace, kCharacter, kString, kNumber, kInteger, kValue, kObject, kArray, kKinds };
  Node rule(Kind kind);
  Node build(Kind kind, Node begin);

  GrammarBuilder builder_;
  std::array<Node, kKinds> rules_ = {-1, -1, -1, -1, -1, -1, -1, -1};
};

}  // namespace quatrain
