// The fields that chat and text completions share: how to sample, when to stop.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/scheduler.h"
#include "serve/grammar/token_masks.h"
#include "serve/request_fields.h"
#include "serve/service.h"

namespace quatrain {

struct GenerationFields {
  int64_t n = 1;
  bool stream = false, include_usage = false;
  bool special = false;  // special tokens appear in the text
  std::vector<std::string> stop;
  std::shared_ptr<MaskedGrammar> grammar;  // null: any text
  GenerationRequest request;               // all but prompt, logprobs, constraint and listener
};

/// Reads and checks them. Unknown fields are ignored; known ones that this server cannot honour are refused
/// by name.
GenerationFields read_generation_fields(const RequestFields& fields, Service& service,
                                        int64_t default_max_tokens);

/// n requests a prompt, in the order of the prompts, each with a seed of its own.
std::vector<GenerationRequest> multiply(const GenerationFields& fields,
                                        const std::vector<std::vector<int32_t>>& prompts);

}  // namespace quatrain
