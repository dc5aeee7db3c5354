#include <algorithm>
#include <cmath>

#include "text/byte_level_scheme.h"
#include "text/end_tokens.h"
#include "text/pipeline_tokenizer.h"
#include "text/sentencepiece_scheme.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

enum TokenType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// Phi-3's special tokens take the white space after them; GGUF has no field for it, the files are known by
// this token.
constexpr std::string_view kPhi3Mark = "<|placeholder1|>";

void read_tokens(TokenizerDefinition& definition, GgufVocabulary& vocabulary) {
  const size_t count = vocabulary.tokens.size();
  require(vocabulary.types.empty() || vocabulary.types.size() == count,
          "{}: tokenizer.ggml.token_type has {} entries for {} tokens", definition.where,
          vocabulary.types.size(), count);
  const bool phi3 =
      std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), kPhi3Mark) != vocabulary.tokens.end();
  for (size_t i = 0; i < count; ++i) {
    std::string& text = vocabulary.tokens[i];
    require(valid_utf8_prefix(text) == text.size(), "{}: tokenizer.ggml.tokens[{}] is not UTF-8",
            definition.where, i);
    const int32_t type = vocabulary.types.empty() ? kNormal : vocabulary.types[i];
    require(type >= kNormal && type <= kByte, "{}: tokenizer.ggml.token_type[{}] is {}, which is no type",
            definition.where, i, type);
    definition.plain.push_back(type == kNormal);
    if ((type != kUnknown && type != kControl && type != kUserDefined) || text.empty()) continue;
    AddedToken token;
    token.id = static_cast<int32_t>(i);
    token.special = type != kUserDefined;
    // Found in the text before spaces become marks.
    if (!token.special) text = unmark_spaces(text);
    token.content = text;
    token.rstrip = phi3 && text != "<unk>" && text != "<s>" && text != "<|endoftext|>";
    definition.added.push_back(std::move(token));
  }
  definition.tokens = std::move(vocabulary.tokens);
}

void read_merges(TokenizerDefinition& definition, const std::vector<std::string>& merges) {
  require(!merges.empty(), "{}: tokenizer.ggml.merges is missing or empty", definition.where);
  const Vocabulary vocabulary(definition.tokens);
  definition.merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const std::string_view merge = merges[i];
    // The space after the first character: a token may itself begin with one.
    const size_t space = merge.find(' ', 1);
    require(space != std::string_view::npos, "{}: tokenizer.ggml.merges[{}] has no space: \"{}\"",
            definition.where, i, merge.substr(0, 80));
    const auto left = vocabulary.find(merge.substr(0, space)),
               right = vocabulary.find(merge.substr(space + 1));
    require(left.has_value() && right.has_value(),
            "{}: tokenizer.ggml.merges[{}] names a token that is not in the vocabulary: \"{}\"",
            definition.where, i, merge.substr(0, 80));
    definition.merges.emplace_back(*left, *right);
  }
}

void read_scores(TokenizerDefinition& definition, std::vector<float> scores) {
  require(scores.size() == definition.tokens.size(), "{}: tokenizer.ggml.scores has {} entries for {} tokens",
          definition.where, scores.size(), definition.tokens.size());
  for (size_t i = 0; i < scores.size(); ++i)
    require(!std::isnan(scores[i]), "{}: tokenizer.ggml.scores[{}] is not a number", definition.where, i);
  definition.scores = std::move(scores);
}

int32_t checked_id(const TokenizerDefinition& definition, int64_t id, std::string_view key) {
  if (id == -1) return -1;
  definition.require_id(id, key);
  return static_cast<int32_t>(id);
}

TokenizerDefinition read_definition(GgufVocabulary vocabulary) {
  TokenizerDefinition definition;
  definition.where = vocabulary.where.empty() ? "GGUF vocabulary" : vocabulary.where;
  read_tokens(definition, vocabulary);
  bool add_bos = false, add_eos = false;
  if (vocabulary.model == "gpt2") {
    const std::string name = vocabulary.pre_tokenizer.empty() ? "default" : vocabulary.pre_tokenizer;
    ByteLevelScheme scheme = byte_level_scheme(name, definition.where + ": tokenizer.ggml.pre");
    read_merges(definition, vocabulary.merges);
    definition.normalizer = std::move(scheme.normalizer);
    definition.pre_tokenizer = std::move(scheme.pre_tokenizer);
    definition.decoder = {
        {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
    definition.ignore_merges = scheme.ignore_merges;
    add_bos = scheme.add_bos;
    add_eos = scheme.add_eos;
  } else if (vocabulary.model == "llama" || vocabulary.model == "gemma4") {
    definition.byte_fallback = true;
    definition.fuse_unknown = true;
    definition.unknown = checked_id(definition, vocabulary.unknown, "tokenizer.ggml.unknown_token_id");
    SentencePieceScheme scheme;
    add_bos = true;
    if (vocabulary.model == "llama") {
      definition.model = TokenizerDefinition::Model::kScores;
      read_scores(definition, std::move(vocabulary.scores));
      scheme.dummy_prefix = vocabulary.add_space_prefix.value_or(true);
    } else {
      read_merges(definition, vocabulary.merges);
      scheme.dummy_prefix = vocabulary.add_space_prefix.value_or(false);
      // Merges never cross a line end.
      definition.pre_tokenizer = {{"type", "Split"},
                                  {"pattern", {{"Regex", "[^\\n]+|[\\n]+"}}},
                                  {"behavior", "Isolated"},
                                  {"invert", false}};
    }
    apply_sentencepiece_scheme(scheme, definition);
  } else {
    fail("{}: tokenizer.ggml.model \"{}\" is not supported; gpt2, llama and gemma4 are{}", definition.where,
         vocabulary.model,
         vocabulary.model == "bert" ? " (WordPiece belongs to encoder models, which do not generate)" : "");
  }
  definition.bos = checked_id(definition, vocabulary.bos, "tokenizer.ggml.bos_token_id");
  const int32_t eos = checked_id(definition, vocabulary.eos, "tokenizer.ggml.eos_token_id");
  if (eos >= 0) definition.eos = {eos};
  if (vocabulary.add_bos.value_or(add_bos) && definition.bos >= 0) definition.prefix = {definition.bos};
  if (vocabulary.add_eos.value_or(add_eos) && eos >= 0) definition.suffix = {eos};
  definition.chat_template = std::move(vocabulary.chat_template);
  add_end_tokens(definition);
  return definition;
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(GgufVocabulary vocabulary) {
  return std::make_unique<PipelineTokenizer>(read_definition(std::move(vocabulary)));
}

}  // namespace quatrain
