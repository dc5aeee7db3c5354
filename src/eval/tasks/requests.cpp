#include "eval/tasks/requests.h"

#include "base/error.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids = tokenizer.encode(text);
  if (tokenizer.adds_bos() && (ids.empty() || ids[0] != tokenizer.bos()))
    ids.insert(ids.begin(), tokenizer.bos());
  return ids;
}

}  // namespace

ScoredRequest encode_request(const Tokenizer& tokenizer, std::string_view context,
                             std::string_view continuation, int64_t limit, const std::string& where) {
  std::string_view stem = context;
  while (!stem.empty() && is_white_space(static_cast<uint8_t>(stem.back()))) stem.remove_suffix(1);
  ScoredRequest request;
  if (stem.empty()) {
    const int32_t prefix =
        tokenizer.bos() >= 0 ? tokenizer.bos() : (tokenizer.eos().empty() ? -1 : tokenizer.eos().front());
    require(prefix >= 0, "{}: an empty context needs a tokenizer with BOS or EOS", where);
    request.ids = tokenizer.encode(std::string(context) + std::string(continuation));
    if (request.ids.empty() || request.ids[0] != prefix) request.ids.insert(request.ids.begin(), prefix);
    request.first = 1;
  } else {
    request.ids = encode(tokenizer, std::string(context) + std::string(continuation));
    request.first = std::ssize(encode(tokenizer, stem));
  }
  const int64_t scored = std::ssize(request.ids) - request.first;
  require(scored >= 1, "{}: the continuation \"{}\" adds no token to its context", where, continuation);
  require(scored <= limit, "{}: a continuation of {} tokens exceeds the model's context of {}", where, scored,
          limit);
  if (const int64_t extra = std::ssize(request.ids) - limit - 1; extra > 0) {
    request.ids.erase(request.ids.begin(), request.ids.begin() + extra);
    request.first -= extra;
  }
  return request;
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view prompt, int64_t limit) {
  std::vector<int32_t> ids = encode(tokenizer, prompt);
  if (std::ssize(ids) > limit) ids.erase(ids.begin(), ids.end() - limit);
  return ids;
}

}  // namespace quatrain
