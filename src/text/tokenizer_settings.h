// What the files beside a vocabulary say: tokenizer_config.json, special_tokens_map.json, added_tokens.json,
// generation_config.json, config.json, chat_template.jinja.
#pragma once

#include <optional>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer_definition.h"

namespace quatrain {

/// `name` in `directory`, or the same packed ("vocab.json.gz").
std::optional<fs::path> find_tokenizer_file(const fs::path& directory, const std::string& name);

class TokenizerSettings {
 public:
  /// Files that are not there are empty objects.
  explicit TokenizerSettings(const fs::path& directory);

  std::string tokenizer_class() const;
  /// "legacy": false: SentencePiece's leading space only at the very beginning of a text.
  bool space_only_first() const;

  /// Adds tokens, sets BOS, EOS and their rules, and the chat template.
  void apply(TokenizerDefinition& definition) const;

 private:
  void add_tokens(TokenizerDefinition& definition) const;
  void mark_special(TokenizerDefinition& definition) const;
  void set_bos_and_eos(TokenizerDefinition& definition) const;
  std::string chat_template() const;
  std::string where_of(const char* file) const;  // in errors

  fs::path directory_;
  Json config_, special_map_, added_, generation_, model_config_;
};

}  // namespace quatrain
