#include <cmath>
#include <cstring>

#include "text/sentencepiece_scheme.h"
#include "text/utf8.h"
#include "text/vocabulary.h"
#include "text/vocabulary_files.h"

namespace quatrain {
namespace {

constexpr int32_t kUnknown = 0, kBos = 1, kEos = 2;  // fixed in llama2.c

}  // namespace

TokenizerDefinition parse_llama2c_vocabulary(std::string_view bytes, const std::string& where) {
  const auto take = [&](void* to, size_t size, std::string_view what) {
    require(bytes.size() >= size, "{}: truncated within {}", where, what);
    std::memcpy(to, bytes.data(), size);
    bytes.remove_prefix(size);
  };
  TokenizerDefinition definition;
  definition.where = where;
  definition.model = TokenizerDefinition::Model::kScores;
  uint32_t longest = 0;
  take(&longest, sizeof longest, "the header");
  while (!bytes.empty()) {
    const size_t id = definition.tokens.size();
    float score = 0;
    int32_t length = 0;
    take(&score, sizeof score, "a score");
    take(&length, sizeof length, "a length");
    require(length > 0 && static_cast<uint32_t>(length) <= bytes.size() && !std::isnan(score),
            "{}: token {} has {} bytes, {} are left; this is no llama2.c tokenizer", where, id, length,
            bytes.size());
    std::string text(bytes.substr(0, static_cast<size_t>(length)));
    bytes.remove_prefix(static_cast<size_t>(length));
    require(valid_utf8_prefix(text) == text.size(), "{}: token {} is not UTF-8", where, id);
    // llama2.c writes spaces where SentencePiece has marks, and line ends around <s> and </s>.
    definition.tokens.push_back(id == kBos ? "<s>" : id == kEos ? "</s>" : mark_spaces(text));
    definition.scores.push_back(score);
    definition.plain.push_back(id > kEos && !byte_token(text));
  }
  require(definition.tokens.size() > kEos, "{}: has only {} tokens; this is no llama2.c tokenizer", where,
          definition.tokens.size());
  for (const int32_t id : {kUnknown, kBos, kEos}) {
    AddedToken token;
    token.id = id;
    token.content = definition.tokens[static_cast<size_t>(id)];
    token.special = true;
    definition.added.push_back(std::move(token));
  }
  definition.byte_fallback = true;
  definition.fuse_unknown = true;
  definition.unknown = kUnknown;
  definition.bos = kBos;
  definition.eos = {kEos};
  definition.prefix = {kBos};
  apply_sentencepiece_scheme({}, definition);
  return definition;
}

}  // namespace quatrain
