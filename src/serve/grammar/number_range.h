// Numbers between two bounds as grammar rules over their decimal digits.
#pragma once

#include <optional>
#include <string>

#include "serve/grammar/json_grammar.h"

namespace quatrain {

struct NumberRange {
  std::optional<double> low, high;             // of JSON Schema: minimum, maximum
  bool above_low = false, below_high = false;  // exclusive
};

/// From a node over one integer in the range. Bounds of more than 15 digits, and a range without an integer,
/// are errors that begin with `where`.
Grammar::Node integer_in(JsonGrammar& json, Grammar::Node from, const NumberRange& range,
                         const std::string& where);

/// The same for decimal numbers, without exponent. They have the decimals that the bounds need (two more
/// beside an exclusive bound), and up to six more where those cannot lead past a bound.
Grammar::Node number_in(JsonGrammar& json, Grammar::Node from, const NumberRange& range,
                        const std::string& where);

}  // namespace quatrain
