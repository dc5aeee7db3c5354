// Context and continuation as token ids, split as lm-evaluation-harness splits them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace quatrain {

/// ids[first..] are scored, each given all ids before it; first >= 1.
struct ScoredRequest {
  std::vector<int32_t> ids;
  int64_t first = 1;
};

/// Encodes context and continuation together and takes what lies behind the context's own ids as the
/// continuation; spaces at the context's end go to the continuation. BOS comes first where the tokenizer adds
/// one, and before an empty context (EOS where there is no BOS). Of more than `limit` + 1 ids the last ones
/// are kept. A continuation without a token of its own, or one that alone is longer than `limit`, is an error
/// that begins with `where`.
ScoredRequest encode_request(const Tokenizer& tokenizer, std::string_view context,
                             std::string_view continuation, int64_t limit, const std::string& where);

/// The ids of a prompt to be continued: with BOS where the tokenizer adds one, the last `limit` of them.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view prompt, int64_t limit);

}  // namespace quatrain
