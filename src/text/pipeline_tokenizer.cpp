#include "text/pipeline_tokenizer.h"

#include <unordered_map>

#include "text/byte_level.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

TokenizerDefinition checked(TokenizerDefinition definition) {
  const size_t size = definition.tokens.size();
  require(size > 0, "{}: the vocabulary is empty", definition.where);
  require(definition.plain.size() == size &&
              (definition.model == TokenizerDefinition::Model::kMerges || definition.scores.size() == size),
          "{}: the vocabulary has {} tokens, {} types and {} scores", definition.where, size,
          definition.plain.size(), definition.scores.size());
  if (definition.unknown != -1) definition.require_id(definition.unknown, "the unknown token");
  if (definition.bos != -1) definition.require_id(definition.bos, "the BOS token");
  for (const int32_t id : definition.eos) definition.require_id(id, "the EOS token");
  for (const int32_t id : definition.prefix) definition.require_id(id, "a token of the post-processor");
  for (const int32_t id : definition.suffix) definition.require_id(id, "a token of the post-processor");
  for (const AddedToken& token : definition.added) definition.require_id(token.id, "an added token");
  require(valid_utf8_prefix(definition.chat_template) == definition.chat_template.size(),
          "{}: the chat template is not UTF-8", definition.where);
  for (const auto& [left, right] : definition.merges) {
    definition.require_id(left, "a token of a merge");
    definition.require_id(right, "a token of a merge");
  }
  return definition;
}

std::unique_ptr<TokenModel> make_model(const TokenizerDefinition& definition, const Vocabulary& vocabulary) {
  if (definition.model == TokenizerDefinition::Model::kUnigram) return make_unigram(definition, vocabulary);
  return make_bpe(definition, vocabulary);
}

}  // namespace

// Words come again and again; one text's words are merged once each.
class PipelineTokenizer::WordCache {
 public:
  explicit WordCache(const TokenModel& model) : model_(model) {}

  void encode(const std::string& word, std::vector<int32_t>& out) {
    if (word.size() > kLongestWord) return model_.encode(word, out);
    const auto [entry, added] = words_.try_emplace(word, ids_.size(), 0);
    if (added) {
      model_.encode(word, ids_);
      entry->second.second = ids_.size() - entry->second.first;
    }
    const auto begin = ids_.begin() + static_cast<ptrdiff_t>(entry->second.first);
    out.insert(out.end(), begin, begin + static_cast<ptrdiff_t>(entry->second.second));
  }

 private:
  static constexpr size_t kLongestWord = 64;  // longer ones seldom come twice

  const TokenModel& model_;
  std::vector<int32_t> ids_;
  std::unordered_map<std::string, std::pair<size_t, size_t>> words_;  // where its ids lie: begin, count
};

PipelineTokenizer::PipelineTokenizer(TokenizerDefinition definition)
    : definition_(checked(std::move(definition))),
      vocabulary_(std::move(definition_.tokens)),
      normalizer_(definition_.normalizer, definition_.where + ": normalizer"),
      pre_tokenizer_(definition_.pre_tokenizer, definition_.where + ": pre_tokenizer"),
      decoder_(definition_.decoder, definition_.where + ": decoder"),
      raw_tokens_(definition_.added, false, normalizer_),
      normalized_tokens_(definition_.added, true, normalizer_),
      special_(static_cast<size_t>(vocabulary_.size()), false),
      added_(special_),
      unknown_text_(definition_, vocabulary_),
      model_(make_model(definition_, vocabulary_)) {
  for (const AddedToken& token : definition_.added) {
    special_[static_cast<size_t>(token.id)] = token.special;
    added_[static_cast<size_t>(token.id)] = true;
  }
  bos_ = definition_.bos;
  eos_ = definition_.eos;
  prefix_ = definition_.prefix;
  suffix_ = definition_.suffix;
  add_bos_ = bos_ >= 0 && !prefix_.empty() && prefix_.front() == bos_;
  add_eos_ = !eos_.empty() && !suffix_.empty() && suffix_.back() == eos_.front();
  chat_template_ = definition_.chat_template;
}

std::vector<int32_t> PipelineTokenizer::encode(std::string_view text, bool special) const {
  std::vector<int32_t> out;
  WordCache cache(*model_);
  for (size_t at = 0; at < text.size();) {
    const size_t valid = valid_utf8_prefix(text.substr(at));
    if (valid > 0) encode_valid(text.substr(at, valid), special, at == 0, at > 0, cache, out);
    at += valid;
    if (at < text.size()) encode_byte(static_cast<uint8_t>(text[at++]), out);
  }
  return out;
}

void PipelineTokenizer::encode_valid(std::string_view text, bool special, bool first, bool continued,
                                     WordCache& cache, std::vector<int32_t>& out) const {
  for (const AddedTokens::Part& raw : raw_tokens_.split(text, special)) {
    if (raw.id >= 0) {
      out.push_back(raw.id);
      continue;
    }
    const bool begins = raw.begin == 0;
    const std::string normalized =
        normalizer_.apply(std::string(text.substr(raw.begin, raw.end - raw.begin)), continued && begins);
    for (const AddedTokens::Part& part : normalized_tokens_.split(normalized, special)) {
      if (part.id >= 0) {
        out.push_back(part.id);
        continue;
      }
      const bool piece_begins = begins && part.begin == 0;
      for (const TextPiece& word : pre_tokenizer_.split({normalized.substr(part.begin, part.end - part.begin),
                                                         first && piece_begins, continued && piece_begins}))
        cache.encode(word.text, out);
    }
  }
}

void PipelineTokenizer::encode_byte(uint8_t byte, std::vector<int32_t>& out) const {
  int32_t id = unknown_text_.byte(byte);
  if (id < 0) {
    // A byte-level vocabulary spells the byte as one character, whose decoding is the byte again.
    const auto found = vocabulary_.find(byte_level_char(byte));
    if (found && decoder_.bytes(vocabulary_.text(*found), false) == std::string(1, static_cast<char>(byte)))
      id = *found;
  }
  if (id < 0) id = definition_.unknown;
  if (id >= 0) out.push_back(id);
}

void PipelineTokenizer::check_id(int32_t id) const {
  require(id >= 0 && id < size(), "{}: there is no token {}; ids go from 0 to {}", definition_.where, id,
          size() - 1);
}

std::string PipelineTokenizer::token_bytes(int32_t id) const {
  check_id(id);
  return decoder_.bytes(vocabulary_.text(id), added_[static_cast<size_t>(id)]);
}

std::string PipelineTokenizer::token_text(int32_t id) const {
  check_id(id);
  return vocabulary_.text(id);
}

std::optional<int32_t> PipelineTokenizer::token_id(std::string_view token_text) const {
  return vocabulary_.find(token_text);
}

bool PipelineTokenizer::is_special(int32_t id) const {
  check_id(id);
  return special_[static_cast<size_t>(id)];
}

}  // namespace quatrain
