// What a model directory needs beside its weights: tokenizer, chat template, generation settings.
#pragma once

#include <memory>

#include "base/file.h"
#include "model/config.h"
#include "text/tokenizer.h"

namespace quatrain {

/// The model's tokenizer; nullptr, with a warning that says why, when it brings none that can be read.
std::unique_ptr<Tokenizer> find_tokenizer(const fs::path& model);

/// Writes the tokenizer files, chat_template.jinja and generation_config.json of the model at `model` into
/// `directory`. A model without a tokenizer gives a warning and a directory without one.
void write_text_files(const fs::path& model, const ModelConfig& config, const fs::path& directory);

}  // namespace quatrain
