// How the byte-level vocabularies of known model families cut a text, by the names that GGUF files use.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace quatrain {

struct ByteLevelScheme {
  Json normalizer, pre_tokenizer;  // as in tokenizer.json
  bool ignore_merges = false;
  bool add_bos = false, add_eos = false;  // where the file does not say
};

/// By the value of tokenizer.ggml.pre. Throws with the known names for one that is not among them.
ByteLevelScheme byte_level_scheme(std::string_view name, std::string_view where);

}  // namespace quatrain
