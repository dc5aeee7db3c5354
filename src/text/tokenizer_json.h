// Hugging Face's tokenizer.json, both ways.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer_definition.h"

namespace quatrain {

class PipelineTokenizer;

/// Reads a document. Throws, naming the field, for anything it does not know how to follow.
TokenizerDefinition parse_tokenizer_json(std::string_view text, const std::string& where);
TokenizerDefinition read_tokenizer_json(const Json& document, const std::string& where);

/// The document of a tokenizer; parse_tokenizer_json gives the same tokenizer back. Throws when two tokens
/// are spelled alike, which the format cannot say.
std::string write_tokenizer_json(const PipelineTokenizer& tokenizer);

}  // namespace quatrain
