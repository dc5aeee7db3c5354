#include <algorithm>
#include <unordered_map>

#include "text/pipeline_tokenizer.h"
#include "text/score_merges.h"
#include "text/tokenizer_json.h"

namespace quatrain {
namespace {

// Composed by hand: an ordered JSON object of 262,144 entries takes minutes, and sorted by spelling it is
// unreadable.
std::string quoted(const std::string& text) {
  return Json(text).dump();
}

template <typename Range, typename Write>
std::string joined(const Range& range, Write&& write) {
  std::string out;
  for (const auto& item : range) {
    const std::string part = write(item);
    if (part.empty()) continue;
    if (!out.empty()) out += ",";
    out += "\n      " + part;
  }
  return out;
}

std::vector<int32_t> ids_in_vocabulary(const PipelineTokenizer& tokenizer) {
  // Added tokens after the last token of the model belong to "added_tokens" alone.
  const TokenizerDefinition& definition = tokenizer.definition();
  std::vector<bool> added(static_cast<size_t>(tokenizer.size()), false);
  for (const AddedToken& token : definition.added) added[static_cast<size_t>(token.id)] = true;
  int64_t end = tokenizer.size();
  while (end > 0 &&
         (added[static_cast<size_t>(end - 1)] || tokenizer.token_text(static_cast<int32_t>(end - 1)).empty()))
    --end;
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < end; ++id)
    if (!tokenizer.token_text(id).empty()) ids.push_back(id);
  return ids;
}

std::string bpe_model(const PipelineTokenizer& tokenizer, const std::vector<int32_t>& ids) {
  const TokenizerDefinition& definition = tokenizer.definition();
  std::vector<std::pair<int32_t, int32_t>> merges = definition.merges;
  if (definition.model == TokenizerDefinition::Model::kScores)
    for (const ScoreMerge& merge : score_merges(definition.scores, definition.plain, tokenizer.vocabulary()))
      merges.emplace_back(merge.left, merge.right);
  const Json unknown = definition.unknown < 0 ? Json() : Json(tokenizer.token_text(definition.unknown));
  return fmt::format(
      R"({{"type": "BPE", "dropout": null, "unk_token": {}, "continuing_subword_prefix": null,
    "end_of_word_suffix": null, "fuse_unk": {}, "byte_fallback": {}, "ignore_merges": {},
    "vocab": {{{}
    }},
    "merges": [{}
    ]}})",
      unknown.dump(), definition.fuse_unknown, definition.byte_fallback, definition.ignore_merges,
      joined(ids, [&](int32_t id) { return fmt::format("{}: {}", quoted(tokenizer.token_text(id)), id); }),
      joined(merges, [&](const auto& merge) {
        return fmt::format("[{}, {}]", quoted(tokenizer.token_text(merge.first)),
                           quoted(tokenizer.token_text(merge.second)));
      }));
}

std::string unigram_model(const PipelineTokenizer& tokenizer, const std::vector<int32_t>& ids) {
  const TokenizerDefinition& definition = tokenizer.definition();
  require(ids.empty() || ids.back() + 1 == static_cast<int32_t>(ids.size()),
          "{}: a unigram vocabulary with holes cannot be written as a tokenizer.json", definition.where);
  return fmt::format(R"({{"type": "Unigram", "unk_id": {}, "byte_fallback": {},
    "vocab": [{}
    ]}})",
                     definition.unknown < 0 ? Json().dump() : Json(definition.unknown).dump(),
                     definition.byte_fallback, joined(ids, [&](int32_t id) {
                       return fmt::format("[{}, {}]", quoted(tokenizer.token_text(id)),
                                          Json(definition.scores[static_cast<size_t>(id)]).dump());
                     }));
}

std::string added_tokens(const TokenizerDefinition& definition) {
  std::vector<AddedToken> tokens = definition.added;
  std::sort(tokens.begin(), tokens.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return joined(tokens, [](const AddedToken& token) {
    return fmt::format(
        R"({{"id": {}, "content": {}, "single_word": {}, "lstrip": {}, "rstrip": {}, "normalized": {}, "special": {}}})",
        token.id, quoted(token.content), token.single_word, token.lstrip, token.rstrip, token.normalized,
        token.special);
  });
}

Json post_processor(const PipelineTokenizer& tokenizer) {
  const TokenizerDefinition& definition = tokenizer.definition();
  if (definition.prefix.empty() && definition.suffix.empty()) return {};
  Json special = Json::object();
  const auto around = [&](const char* sequence, int type) {
    Json parts = Json::array();
    const auto add = [&](const std::vector<int32_t>& ids) {
      for (const int32_t id : ids) {
        const std::string text = tokenizer.token_text(id);
        parts.push_back({{"SpecialToken", {{"id", text}, {"type_id", type}}}});
        special[text] = {{"id", text}, {"ids", Json::array({id})}, {"tokens", Json::array({text})}};
      }
    };
    add(definition.prefix);
    parts.push_back({{"Sequence", {{"id", sequence}, {"type_id", type}}}});
    add(definition.suffix);
    return parts;
  };
  Json pair = around("A", 0);
  for (Json& part : around("B", 1)) pair.push_back(part);
  return {{"type", "TemplateProcessing"},
          {"single", around("A", 0)},
          {"pair", pair},
          {"special_tokens", special}};
}

void require_distinct(const PipelineTokenizer& tokenizer) {
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    const std::string text = tokenizer.token_text(id);
    if (text.empty()) continue;
    const int32_t first = tokenizer.token_id(text).value_or(id);
    require(first == id, "{}: tokens {} and {} are both \"{}\", which a tokenizer.json cannot say",
            tokenizer.definition().where, first, id, text.substr(0, 80));
  }
}

}  // namespace

std::string write_tokenizer_json(const PipelineTokenizer& tokenizer) {
  const TokenizerDefinition& definition = tokenizer.definition();
  require_distinct(tokenizer);
  const std::vector<int32_t> ids = ids_in_vocabulary(tokenizer);
  const bool unigram = definition.model == TokenizerDefinition::Model::kUnigram;
  return fmt::format(R"({{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [{}
  ],
  "normalizer": {},
  "pre_tokenizer": {},
  "post_processor": {},
  "decoder": {},
  "model": {}
}}
)",
                     added_tokens(definition), definition.normalizer.dump(), definition.pre_tokenizer.dump(),
                     post_processor(tokenizer).dump(), definition.decoder.dump(),
                     unigram ? unigram_model(tokenizer, ids) : bpe_model(tokenizer, ids));
}

}  // namespace quatrain
