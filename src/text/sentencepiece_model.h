// SentencePiece's .model files (a protobuf message: sentencepiece_model.proto).
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer_definition.h"

namespace quatrain {

/// `only_first`: the space before a text is not put again after a special token ("legacy": false in
/// tokenizer_config.json). Throws for model types other than BPE and unigram.
TokenizerDefinition parse_sentencepiece_model(std::string_view bytes, bool only_first,
                                              const std::string& where);

}  // namespace quatrain
