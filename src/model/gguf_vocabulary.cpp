// A tokenizer as GGUF's tokenizer.* keys. GGUF names the rule that cuts words instead of holding it, so the
// name is found by trial: the vocabulary is read back under each known name and must give the same ids.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/log.h"
#include "model/gguf_metadata.h"
#include "text/pipeline_tokenizer.h"

namespace quatrain {
namespace {

enum TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// Where the rules of tokenizer.ggml.pre differ: contractions, digit runs, case, punctuation, white space,
// line ends, scripts, decomposed accents, emoji.
constexpr std::string_view kHardText =
    "I'm sure they'LL say we've HE'D it's 'quoted' don't\n\n\n  1 12 123 1234 12345 3.14,15 x2y a1b2  \t "
    "tabs\t\tend \r\n"
    "CamelCaseWord HTTPServer snake_case (a+b)==[c]<d>{e}!!! ...??? $^~`|#@%&*-/\\ <sentinel:1>\n \n"
    "naïve café e\xCC\x81te\xCC\x81 Ångström Straße İstanbul привет, мир! 日本語のテキスト。中文，标点！ "
    "한국어 العربية हिन्दी ไทย ½ ² Ⅷ "
    "👍🏽👩‍👩‍👧 \xC2\xA0nbsp\xE2\x80\x89thin   trailing   ";

constexpr std::array<const char*, 16> kWordRules = {
    "llama-bpe",   "qwen2",  "smollm", "gpt-2",           "default",      "mpt",
    "roberta-bpe", "falcon", "dbrx",   "qwen35",          "deepseek-llm", "deepseek-coder",
    "deepseek-v3", "tekken", "gpt-4o", "deepseek-r1-qwen"};

GgufVocabulary base_vocabulary(const PipelineTokenizer& tokenizer, int64_t size) {
  const TokenizerDefinition& definition = tokenizer.definition();
  GgufVocabulary vocabulary;
  vocabulary.where = definition.where;
  const int64_t known = tokenizer.size();
  for (int64_t id = 0; id < std::max(known, size); ++id) {
    std::string text = id < known ? tokenizer.token_text(static_cast<int32_t>(id)) : "";
    const bool hole = text.empty();
    const bool plain = !hole && definition.plain[static_cast<size_t>(id)];
    const bool byte =
        definition.byte_fallback && text.size() == 6 && text.starts_with("<0x") && text.back() == '>';
    vocabulary.types.push_back(byte ? kByte : plain ? kNormal : kUnused);
    vocabulary.tokens.push_back(hole ? fmt::format("[PAD{}]", id) : std::move(text));
  }
  for (const AddedToken& token : definition.added)
    vocabulary.types[static_cast<size_t>(token.id)] = token.special ? kControl : kUserDefined;
  if (definition.unknown >= 0) vocabulary.types[static_cast<size_t>(definition.unknown)] = kUnknown;
  vocabulary.bos = tokenizer.bos();
  vocabulary.eos = tokenizer.eos().empty() ? -1 : tokenizer.eos().front();
  vocabulary.unknown = definition.unknown;
  vocabulary.add_bos = tokenizer.adds_bos();
  vocabulary.add_eos = tokenizer.adds_eos();
  vocabulary.chat_template = tokenizer.chat_template();
  return vocabulary;
}

bool same_ids(const Tokenizer& tokenizer, const GgufVocabulary& vocabulary) {
  std::string text(kHardText);
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id)
    if (vocabulary.types[id] == kControl || vocabulary.types[id] == kUserDefined) {
      text += " a" + tokenizer.token_text(static_cast<int32_t>(id)) + " b";
      if (text.size() > 8192) break;
    }
  try {
    const auto back = load_tokenizer(vocabulary);
    return back->encode(text) == tokenizer.encode(text) &&
           back->encode_sequence("a") == tokenizer.encode_sequence("a") &&
           back->encode(kHardText, false) == tokenizer.encode(kHardText, false);
  } catch (const Error& error) {
    log_debug("GGUF vocabulary: {}", error.what());
    return false;
  }
}

// SentencePiece BPE in the order of its merges: a piece scores minus the rank of the first merge that makes
// it.
std::vector<float> scores_of_merges(const PipelineTokenizer& tokenizer, const GgufVocabulary& vocabulary) {
  const auto& merges = tokenizer.definition().merges;
  std::vector<float> scores(vocabulary.tokens.size(), 0);
  for (size_t rank = merges.size(); rank-- > 0;) {
    const auto [left, right] = merges[rank];
    const auto made = tokenizer.token_id(tokenizer.token_text(left) + tokenizer.token_text(right));
    if (made) scores[static_cast<size_t>(*made)] = -static_cast<float>(rank + 1);
  }
  return scores;
}

// The vocabulary under the first rule that reproduces the tokenizer; nullopt when none does.
std::optional<GgufVocabulary> find_vocabulary(const PipelineTokenizer& tokenizer, int64_t size) {
  using Model = TokenizerDefinition::Model;
  const TokenizerDefinition& definition = tokenizer.definition();
  GgufVocabulary vocabulary = base_vocabulary(tokenizer, size);
  if (definition.model == Model::kMerges && !definition.byte_fallback) {
    vocabulary.model = "gpt2";
    for (const auto& [left, right] : definition.merges)
      vocabulary.merges.push_back(tokenizer.token_text(left) + " " + tokenizer.token_text(right));
    for (const char* rule : kWordRules) {
      vocabulary.pre_tokenizer = rule;
      if (same_ids(tokenizer, vocabulary)) return vocabulary;
    }
    return std::nullopt;
  }
  if (definition.model == Model::kUnigram) return std::nullopt;
  vocabulary.model = "llama";
  vocabulary.pre_tokenizer = "default";
  vocabulary.scores =
      definition.model == Model::kScores ? definition.scores : scores_of_merges(tokenizer, vocabulary);
  vocabulary.scores.resize(vocabulary.tokens.size());
  for (const bool prefix : {true, false}) {
    vocabulary.add_space_prefix = prefix;
    if (same_ids(tokenizer, vocabulary)) return vocabulary;
  }
  return std::nullopt;
}

}  // namespace

void write_gguf_vocabulary(const ModelConfig& config, const Tokenizer* tokenizer, GgufWriter& writer) {
  const auto set_id = [&](const char* key, int64_t id) {
    if (id >= 0) writer.set_u32(fmt::format("tokenizer.ggml.{}", key), static_cast<uint32_t>(id));
  };
  const int64_t config_eos = config.eos.empty() ? -1 : config.eos.front();
  set_id("bos_token_id", tokenizer == nullptr ? config.bos : tokenizer->bos());
  set_id("eos_token_id",
         tokenizer == nullptr || tokenizer->eos().empty() ? config_eos : tokenizer->eos().front());
  set_id("padding_token_id", config.pad);
  if (tokenizer == nullptr) return;
  const auto* pipeline = dynamic_cast<const PipelineTokenizer*>(tokenizer);
  const auto vocabulary = pipeline == nullptr ? std::nullopt : find_vocabulary(*pipeline, config.vocabulary);
  if (!vocabulary) {
    log_warn("GGUF has no name for how this tokenizer cuts text; the file is written without a vocabulary");
    return;
  }
  set_id("unknown_token_id", vocabulary->unknown);
  writer.set_string("tokenizer.ggml.model", vocabulary->model);
  writer.set_string("tokenizer.ggml.pre", vocabulary->pre_tokenizer);
  writer.set_strings("tokenizer.ggml.tokens", vocabulary->tokens);
  if (!vocabulary->scores.empty()) writer.set_f32s("tokenizer.ggml.scores", vocabulary->scores);
  writer.set_i32s("tokenizer.ggml.token_type", vocabulary->types);
  if (!vocabulary->merges.empty()) writer.set_strings("tokenizer.ggml.merges", vocabulary->merges);
  writer.set_bool("tokenizer.ggml.add_bos_token", *vocabulary->add_bos);
  writer.set_bool("tokenizer.ggml.add_eos_token", *vocabulary->add_eos);
  if (vocabulary->add_space_prefix)
    writer.set_bool("tokenizer.ggml.add_space_prefix", *vocabulary->add_space_prefix);
  if (!vocabulary->chat_template.empty())
    writer.set_string("tokenizer.chat_template", vocabulary->chat_template);
}

}  // namespace quatrain
