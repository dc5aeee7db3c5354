// One sequence from prompt to stop: prefill, sample, decode, stream.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"
#include "text/tokenizer.h"

namespace quatrain {

struct GenerateOptions {
  int64_t max_tokens = 512;
  std::vector<std::string> stop = {};  // texts that end the reply and are not part of it
  std::vector<int32_t> stop_ids = {};  // tokens that end it (the tokenizer's eos, unless ignore_eos)
  SamplerOptions sampling = {};
};

struct Generation {
  std::vector<int32_t> tokens;  // without the stop token
  std::string text;
  enum class Finish { Stop, Length, Context, Cancelled } finish = Finish::Length;
  int64_t prompt_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;
};

/// Appends `prompt` to `sequence` and generates. Afterwards the sequence holds the prompt and every token but
/// the last one, whose successor nobody asked for. `on_text` receives text that is final (whole UTF-8
/// characters, no beginning of a stop string); returning false cancels.
Generation generate(Engine& engine, const Tokenizer& tokenizer, int64_t sequence,
                    std::span<const int32_t> prompt, const GenerateOptions& options,
                    const std::function<bool(std::string_view)>& on_text = nullptr);

}  // namespace quatrain
