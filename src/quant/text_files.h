// What an artifact needs beside its weights: tokenizer, chat template, generation settings.
#pragma once

#include "base/file.h"
#include "model/config.h"

namespace quatrain {

/// Writes the tokenizer files, chat_template.jinja and generation_config.json of the model at `model` into
/// `directory`. A model without a tokenizer gives a warning and an artifact without one.
void write_text_files(const fs::path& model, const ModelConfig& config, const fs::path& directory);

}  // namespace quatrain
