// What a GGUF file says beside its tensors: the config and the vocabulary.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/gguf_writer.h"
#include "model/config.h"
#include "text/tokenizer.h"

namespace quatrain {

/// general.* and the architecture's keys; config_from_gguf reads the same config back. `type` is that of the
/// matrices. What GGUF cannot say (per-layer windows outside Gemma, YaRN's own factors, ...) is refused by
/// name.
void write_gguf_config(const ModelConfig& config, const std::string& type, GgufWriter& writer);

/// The values of rope_freqs.weight; empty when RoPE needs none.
std::vector<float> gguf_rope_divisors(const ModelConfig& config);

/// tokenizer.*: the special ids (the tokenizer's, or the config's without one) and the vocabulary, filled up
/// to the config's size. A vocabulary that GGUF's reader would cut otherwise (tried on a text of hard cases)
/// is left out with a warning. `tokenizer` may be null.
void write_gguf_vocabulary(const ModelConfig& config, const Tokenizer* tokenizer, GgufWriter& writer);

}  // namespace quatrain
