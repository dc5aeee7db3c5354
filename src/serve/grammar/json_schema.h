// From a JSON Schema (draft 2020-12) to a grammar whose texts all validate. The grammar may be narrower than
// the schema: objects have their properties in the order of the schema and no others, for instance.
#pragma once

#include <string>

#include "base/json.h"
#include "serve/grammar/json_grammar.h"

namespace quatrain {

/// A schema as a rule of a grammar that is being built. `where` begins errors: "response_format.json_schema".
/// Keywords that restrict and that this compiler does not know how to honour are errors that name keyword and
/// place; annotations (title, description, default, ...) are ignored.
Grammar::Node schema_rule(JsonGrammar& json, const OrderedJson& schema, const std::string& where);

/// The grammar of a schema alone, and of any JSON object.
Grammar schema_grammar(const OrderedJson& schema, const std::string& where);
Grammar object_grammar();

}  // namespace quatrain
