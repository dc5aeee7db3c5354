// The tokenizer that every definition becomes: added tokens, normalizer, pre-tokenizer, model, decoder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_decoder.h"
#include "text/token_model.h"
#include "text/tokenizer.h"
#include "text/tokenizer_definition.h"

namespace quatrain {

class PipelineTokenizer : public Tokenizer {
 public:
  /// Throws when the definition contradicts itself.
  explicit PipelineTokenizer(TokenizerDefinition definition);

  std::vector<int32_t> encode(std::string_view text, bool special) const override;
  std::string token_bytes(int32_t id) const override;
  std::string token_text(int32_t id) const override;
  std::optional<int32_t> token_id(std::string_view token_text) const override;
  int64_t size() const override { return vocabulary_.size(); }
  bool is_special(int32_t id) const override;
  bool strips_leading_space() const override { return decoder_.strips_leading_space(); }

  const Vocabulary& vocabulary() const { return vocabulary_; }
  /// What this was made of, its tokens' spellings apart (they are moved out; see token_text()).
  const TokenizerDefinition& definition() const { return definition_; }

 private:
  class WordCache;
  void encode_valid(std::string_view text, bool special, bool first, bool continued, WordCache& cache,
                    std::vector<int32_t>& out) const;
  void encode_byte(uint8_t byte, std::vector<int32_t>& out) const;
  void check_id(int32_t id) const;

  TokenizerDefinition definition_;
  Vocabulary vocabulary_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  TokenDecoder decoder_;
  AddedTokens raw_tokens_, normalized_tokens_;
  std::vector<bool> special_, added_;  // by id
  UnknownText unknown_text_;
  std::unique_ptr<TokenModel> model_;
};

}  // namespace quatrain
