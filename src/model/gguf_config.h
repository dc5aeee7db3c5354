// GGUF metadata as a ModelConfig, and back.
#pragma once

#include "checkpoint/gguf.h"
#include "model/config.h"

namespace quatrain {

/// From general.architecture and its keys; whatever the table does not have is refused by name. Norms of
/// Gemma files hold the offset already (norm_offset is 0), the head is tied when the file has none, and
/// llama3 RoPE scaling is recognised in rope_freqs.weight.
ModelConfig config_from_gguf(const GgufFile& file);

}  // namespace quatrain
