// Greedy continuations of many prompts together.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "text/tokenizer.h"

namespace quatrain {

/// The text that greedy decoding gives behind each prompt: up to `max_tokens` tokens, an EOS token, the end
/// of the context, or one of `stops`, which is not part of it. At most `batch` prompts run together, and a
/// prompt's beginning that ran in its place before is not run again. `on_done` hears how many are finished.
std::vector<std::string> continue_greedily(Engine& engine, const Tokenizer& tokenizer,
                                           std::span<const std::vector<int32_t>> prompts, int64_t max_tokens,
                                           std::span<const std::string> stops, int64_t batch,
                                           const std::function<void(int64_t done)>& on_done);

}  // namespace quatrain
