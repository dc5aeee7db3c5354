// Vocabularies that are no tokenizer.json: vocab.json with merges.txt, and llama2.c's tokenizer.bin.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer_definition.h"

namespace quatrain {

/// GPT-2's pair of files: an object of spelling to id, and one merge a line ("left right", best first).
/// `tokenizer_class` of tokenizer_config.json tells how words are cut; empty is taken as GPT2Tokenizer.
TokenizerDefinition parse_vocab_and_merges(std::string_view vocab, std::string_view merges,
                                           const std::string& tokenizer_class, const std::string& where);

/// llama2.c: uint32 longest token, then for every token float score, int32 length, bytes; to the end of the
/// file.
TokenizerDefinition parse_llama2c_vocabulary(std::string_view bytes, const std::string& where);

}  // namespace quatrain
