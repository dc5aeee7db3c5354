#include <algorithm>
#include <unordered_map>

#include "text/tokenizer_json.h"
#include "text/vocabulary.h"

namespace quatrain {
namespace {

// Ids may leave holes, but a lying id must not make a huge table.
size_t highest_id(size_t tokens) {
  return 2 * tokens + 65536;
}

void place(TokenizerDefinition& definition, const std::string& text, int64_t id, size_t limit,
           std::string_view field) {
  require(id >= 0 && id <= static_cast<int64_t>(limit),
          "{}: {} gives \"{}\" the id {}, far outside the vocabulary", definition.where, field,
          text.substr(0, 80), id);
  const size_t index = static_cast<size_t>(id);
  if (index >= definition.tokens.size()) definition.tokens.resize(index + 1);
  std::string& slot = definition.tokens[index];
  require(slot.empty() || slot == text, "{}: {} gives id {} to both \"{}\" and \"{}\"", definition.where,
          field, id, slot.substr(0, 80), text.substr(0, 80));
  slot = text;
}

void read_vocabulary_object(TokenizerDefinition& definition, const Json& vocabulary, size_t limit) {
  for (const auto& [text, id] : vocabulary.items()) {
    const auto number = json_whole<int64_t>(id);
    require(number.has_value(), "{}: model.vocab: the id of \"{}\" is no whole number of 64 bits: {}",
            definition.where, text.substr(0, 80), id.dump().substr(0, 40));
    if (!text.empty()) place(definition, text, *number, limit, "model.vocab");
  }
}

// Two characters' worth of key: the ids by spelling while the merges are read.
using Ids = std::unordered_map<std::string_view, int32_t>;

int32_t merge_part(const TokenizerDefinition& definition, const Ids& ids, std::string_view part,
                   size_t number) {
  const auto found = ids.find(part);
  require(found != ids.end(), "{}: model.merges[{}] names \"{}\", which is not in model.vocab",
          definition.where, number, part.substr(0, 80));
  return found->second;
}

void read_merges(TokenizerDefinition& definition, const Json& merges) {
  require(merges.is_array(), "{}: model.merges is not an array", definition.where);
  Ids ids;
  ids.reserve(definition.tokens.size());
  for (size_t id = 0; id < definition.tokens.size(); ++id)
    if (!definition.tokens[id].empty()) ids.emplace(definition.tokens[id], static_cast<int32_t>(id));
  definition.merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const Json& merge = merges[i];
    std::string_view left, right;
    if (merge.is_string()) {  // "left right"
      const std::string_view text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      require(space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos,
              "{}: model.merges[{}] is not two tokens with a space between: \"{}\"", definition.where, i,
              text.substr(0, 80));
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else {  // ["left", "right"]
      require(merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string(),
              "{}: model.merges[{}] is neither a string nor a pair of strings", definition.where, i);
      left = merge[0].get_ref<const std::string&>();
      right = merge[1].get_ref<const std::string&>();
    }
    definition.merges.emplace_back(merge_part(definition, ids, left, i),
                                   merge_part(definition, ids, right, i));
  }
}

void read_bpe(TokenizerDefinition& definition, const Json& model) {
  const std::string where = definition.where + ": model";
  const auto vocabulary = model.find("vocab");
  require(vocabulary != model.end() && vocabulary->is_object(), "{}.vocab is missing or not an object",
          where);
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    require(json_get_or<std::string>(model, affix, "", where).empty(), "{}.{} is not supported", where,
            affix);
  read_vocabulary_object(definition, *vocabulary, highest_id(vocabulary->size()));
  const auto merges = model.find("merges");
  require(merges != model.end(), "{}.merges is missing", where);
  read_merges(definition, *merges);
  definition.byte_fallback = json_get_or(model, "byte_fallback", false, where);
  definition.fuse_unknown = json_get_or(model, "fuse_unk", false, where);
  definition.ignore_merges = json_get_or(model, "ignore_merges", false, where);
  const auto unknown = json_get_or<std::string>(model, "unk_token", "", where);
  if (!unknown.empty()) {
    const auto found = vocabulary->find(unknown);
    // Files name an unknown token that only "added_tokens" has, or none has; BPE then has none.
    if (found != vocabulary->end()) definition.unknown = found->get<int32_t>();
  }
}

void read_unigram(TokenizerDefinition& definition, const Json& model) {
  const std::string where = definition.where + ": model";
  definition.model = TokenizerDefinition::Model::kUnigram;
  const auto vocabulary = model.find("vocab");
  require(vocabulary != model.end() && vocabulary->is_array() && !vocabulary->empty(),
          "{}.vocab is missing or not an array", where);
  for (const Json& entry : *vocabulary) {
    require(entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number(),
            "{}.vocab[{}] is not a pair of piece and score", where, definition.tokens.size());
    definition.tokens.push_back(entry[0].get<std::string>());
    definition.scores.push_back(entry[1].get<float>());
  }
  definition.unknown = json_get_or<int32_t>(model, "unk_id", -1, where);
  definition.byte_fallback = json_get_or(model, "byte_fallback", false, where);
  definition.fuse_unknown = true;  // as Hugging Face's Unigram does
}

void read_added_tokens(TokenizerDefinition& definition, const Json& tokens) {
  if (tokens.is_null()) return;
  const std::string where = definition.where + ": added_tokens";
  require(tokens.is_array(), "{} is not an array", where);
  const size_t limit = highest_id(definition.tokens.size() + tokens.size());
  for (const Json& entry : tokens) {
    AddedToken token;
    token.content = json_get<std::string>(entry, "content", where);
    const auto id = json_get<int64_t>(entry, "id", where);
    require(!token.content.empty(), "{}: the token {} has no content", where, id);
    place(definition, token.content, id, limit, "added_tokens");
    token.id = static_cast<int32_t>(id);
    token.special = json_get_or(entry, "special", false, where);
    token.single_word = json_get_or(entry, "single_word", false, where);
    token.lstrip = json_get_or(entry, "lstrip", false, where);
    token.rstrip = json_get_or(entry, "rstrip", false, where);
    token.normalized = json_get_or(entry, "normalized", !token.special, where);
    definition.added.push_back(std::move(token));
  }
}

int32_t token_named(const TokenizerDefinition& definition, const std::string& text, std::string_view field) {
  const auto found = std::find(definition.tokens.begin(), definition.tokens.end(), text);
  require(found != definition.tokens.end(),
          "{}: {} names the token \"{}\", which the vocabulary does not have", definition.where, field, text);
  return static_cast<int32_t>(found - definition.tokens.begin());
}

void read_template(TokenizerDefinition& definition, const Json& processor) {
  const std::string where = definition.where + ": post_processor";
  const auto single = processor.find("single");
  require(single != processor.end() && single->is_array(), "{}.single is missing or not an array", where);
  bool before = true;
  for (const Json& part : *single) {
    if (part.is_object() && part.contains("Sequence")) {
      before = false;
      continue;
    }
    const auto name = json_get<std::string>(json_get<Json>(part, "SpecialToken", where), "id", where);
    const Json tokens = json_get_or<Json>(processor, "special_tokens", Json::object(), where);
    std::vector<int32_t> ids;
    if (tokens.contains(name)) {
      const auto listed = json_get<std::vector<int64_t>>(tokens.at(name), "ids", where + ".special_tokens");
      for (const int64_t id : listed) {
        definition.require_id(id, "post_processor.special_tokens." + name);
        ids.push_back(static_cast<int32_t>(id));
      }
    } else {
      ids.push_back(token_named(definition, name, "post_processor"));
    }
    std::vector<int32_t>& side = before ? definition.prefix : definition.suffix;
    side.insert(side.end(), ids.begin(), ids.end());
  }
}

void read_post_processor(TokenizerDefinition& definition, const Json& processor) {
  if (processor.is_null()) return;
  const std::string where = definition.where + ": post_processor";
  const auto type = json_get<std::string>(processor, "type", where);
  if (type == "Sequence") {
    const auto parts = json_get<Json>(processor, "processors", where);
    require(parts.is_array(), "{}.processors is not an array", where);
    for (const Json& part : parts) read_post_processor(definition, part);
  } else if (type == "TemplateProcessing") {
    read_template(definition, processor);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    const auto pair = [&](const char* field) {
      const Json value = json_get<Json>(processor, field, where);  // ["</s>", 2]
      require(value.is_array() && value.size() == 2 && value[1].is_number_integer(),
              "{}.{} is not a pair of token and id", where, field);
      definition.require_id(value[1].get<int64_t>(), where);
      return value[1].get<int32_t>();
    };
    definition.prefix.push_back(pair("cls"));
    definition.suffix.push_back(pair("sep"));
  } else {
    require(type == "ByteLevel", "{} \"{}\" is not supported", where, type);  // ByteLevel only moves offsets
  }
}

bool mentions_byte_level(const Json& description) {
  return description.is_object() && description.dump().find("\"ByteLevel\"") != std::string::npos;
}

}  // namespace

TokenizerDefinition parse_tokenizer_json(std::string_view text, const std::string& where) {
  return read_tokenizer_json(parse_json(text, where), where);
}

TokenizerDefinition read_tokenizer_json(const Json& document, const std::string& where) {
  TokenizerDefinition definition;
  definition.where = where;
  const auto found = document.is_object() ? document.find("model") : document.end();
  require(document.is_object() && found != document.end() && found->is_object(),
          "{}: field \"model\" is missing; this is no tokenizer.json", where);
  const Json& model = *found;
  // Old files leave the type out; a BPE has merges.
  const auto type = json_get_or<std::string>(model, "type", model.contains("merges") ? "BPE" : "", where);
  if (type == "BPE") {
    read_bpe(definition, model);
  } else if (type == "Unigram") {
    read_unigram(definition, model);
  } else {
    fail(
        "{}: a tokenizer of type \"{}\" is not supported (BPE and Unigram are); WordPiece and WordLevel "
        "belong to "
        "encoder models",
        where, type);
  }
  definition.plain.assign(definition.tokens.size(), true);
  const auto part = [&](const char* name) { return document.contains(name) ? document.at(name) : Json(); };
  read_added_tokens(definition, part("added_tokens"));
  definition.plain.resize(definition.tokens.size(), false);
  if (!definition.scores.empty()) definition.scores.resize(definition.tokens.size(), 0);
  for (size_t id = 0; id < definition.tokens.size(); ++id)
    if (definition.byte_fallback && byte_token(definition.tokens[id])) definition.plain[id] = false;
  if (definition.model == TokenizerDefinition::Model::kUnigram) {
    // A control token's score is 0, the best there is; in the text it is not the model's to find.
    for (const AddedToken& token : definition.added) definition.plain[static_cast<size_t>(token.id)] = false;
    if (definition.unknown != -1) {
      definition.require_id(definition.unknown, "model.unk_id");
      definition.plain[static_cast<size_t>(definition.unknown)] = false;
    }
  }
  definition.normalizer = part("normalizer");
  definition.pre_tokenizer = part("pre_tokenizer");
  definition.decoder = part("decoder");
  // Files without a decoder leave byte-level spellings; their text is known all the same.
  if (definition.decoder.is_null() && mentions_byte_level(definition.pre_tokenizer))
    definition.decoder = {{"type", "ByteLevel"}};
  read_post_processor(definition, part("post_processor"));
  return definition;
}

}  // namespace quatrain
