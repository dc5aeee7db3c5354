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

/// tokenizer.*, filled up to `vocabulary` tokens. A vocabulary that GGUF's reader would cut otherwise (tried
/// on a text of hard cases) is left out with a warning.
void write_gguf_vocabulary(const Tokenizer& tokenizer, int64_t vocabulary, GgufWriter& writer);

}  // namespace quatrain
