// Tokens that end a reply in the chat formats in use, beside the EOS that a file names.
#pragma once

#include "text/tokenizer_definition.h"

namespace quatrain {

/// Appends to definition.eos every added token that is known to end a turn or a text.
void add_end_tokens(TokenizerDefinition& definition);

}  // namespace quatrain
