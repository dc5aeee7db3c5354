// Regular expressions of JSON Schema (ECMA-262) as grammar rules over the characters of a JSON string.
#pragma once

#include <string>

#include "serve/grammar/json_grammar.h"

namespace quatrain {

/// From a node over the inside of a string (without its quotes) that matches. Without ^ and $ anything may
/// stand before and after, as the standard has it. Wildcards and negated classes stand for printable ASCII,
/// on which all dialects agree. Look-around, back references, word boundaries and anchors in the middle are
/// errors that begin with `where`.
Grammar::Node pattern(JsonGrammar& json, Grammar::Node from, const std::string& expression,
                      const std::string& where);

}  // namespace quatrain
