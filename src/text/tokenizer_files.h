// The tokenizer files of a model directory: taken over as they are, or written from a loaded tokenizer.
#pragma once

#include "base/file.h"
#include "text/tokenizer.h"

namespace quatrain {

/// Copies the tokenizer files of a hub directory, unpacked, into another directory: vocabularies, their
/// configuration, chat templates, and generation_config.json (it names EOS tokens). Throws when there is no
/// vocabulary.
void copy_tokenizer_files(const fs::path& from_directory, const fs::path& to_directory);

/// Writes tokenizer.json, tokenizer_config.json and, where there is a template, chat_template.jinja in
/// Hugging Face's format. Loading the directory gives the same ids, with one exception: where a SentencePiece
/// BPE vocabulary has pieces of equal score, the format cannot say that the leftmost of two such merges goes
/// first.
void save_tokenizer_json(const Tokenizer& tokenizer, const fs::path& directory);

}  // namespace quatrain
