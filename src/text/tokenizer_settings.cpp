#include "text/tokenizer_settings.h"

#include <algorithm>
#include <map>

#include "text/end_tokens.h"

namespace quatrain {
namespace {

Json read_object(const fs::path& directory, const std::string& name) {
  const auto path = find_tokenizer_file(directory, name);
  if (!path) return Json::object();
  Json document = read_json(*path);
  require(document.is_object(), "{}: not a JSON object", path->string());
  return document;
}

// A special token is written as a string or as an object with its content; null names none.
std::optional<std::string> content_of(const Json& value, const std::string& where) {
  if (value.is_null()) return std::nullopt;
  if (value.is_string()) return value.get<std::string>();
  require(value.is_object(), "{} must be a token's text, is {}", where, value.dump().substr(0, 80));
  return json_get<std::string>(value, "content", where);
}

std::optional<int32_t> find_token(const TokenizerDefinition& definition, const std::string& text) {
  const auto found = std::find(definition.tokens.begin(), definition.tokens.end(), text);
  if (text.empty() || found == definition.tokens.end()) return std::nullopt;
  return static_cast<int32_t>(found - definition.tokens.begin());
}

AddedToken* find_added(TokenizerDefinition& definition, int32_t id) {
  const auto found = std::find_if(definition.added.begin(), definition.added.end(),
                                  [&](const AddedToken& token) { return token.id == id; });
  return found == definition.added.end() ? nullptr : &*found;
}

void add_token(TokenizerDefinition& definition, AddedToken token, const std::string& where) {
  if (find_added(definition, token.id) != nullptr) return;  // the vocabulary's own file says it already
  const size_t id = static_cast<size_t>(token.id);
  // The next ids after the vocabulary; more than a gap of padding would be a lie.
  require(id < 2 * definition.tokens.size() + 65536, "{}: \"{}\" has the id {}, far outside the vocabulary",
          where, token.content.substr(0, 80), token.id);
  if (id >= definition.tokens.size()) {
    definition.tokens.resize(id + 1);
    definition.plain.resize(id + 1, false);
    if (!definition.scores.empty()) definition.scores.resize(id + 1, 0);
  }
  std::string& slot = definition.tokens[id];
  require(slot.empty() || slot == token.content, "{}: id {} is \"{}\" here and \"{}\" in {}", where, token.id,
          token.content.substr(0, 80), slot.substr(0, 80), definition.where);
  slot = token.content;
  definition.added.push_back(std::move(token));
}

}  // namespace

std::optional<fs::path> find_tokenizer_file(const fs::path& directory, const std::string& name) {
  std::error_code error;
  for (const std::string& candidate : {name, name + ".gz"})
    if (fs::exists(directory / candidate, error)) return directory / candidate;
  return std::nullopt;
}

TokenizerSettings::TokenizerSettings(const fs::path& directory)
    : directory_(directory),
      config_(read_object(directory, "tokenizer_config.json")),
      special_map_(read_object(directory, "special_tokens_map.json")),
      added_(read_object(directory, "added_tokens.json")),
      generation_(read_object(directory, "generation_config.json")),
      model_config_(read_object(directory, "config.json")) {}

std::string TokenizerSettings::where_of(const char* file) const {
  return (directory_ / file).string();
}

std::string TokenizerSettings::tokenizer_class() const {
  return json_get_or<std::string>(config_, "tokenizer_class", "", where_of("tokenizer_config.json"));
}

bool TokenizerSettings::space_only_first() const {
  return !json_get_or(config_, "legacy", true, where_of("tokenizer_config.json"));
}

void TokenizerSettings::apply(TokenizerDefinition& definition) const {
  add_tokens(definition);
  mark_special(definition);
  set_bos_and_eos(definition);
  add_end_tokens(definition);
  std::string text = chat_template();
  if (!text.empty()) definition.chat_template = std::move(text);
}

void TokenizerSettings::add_tokens(TokenizerDefinition& definition) const {
  const std::string where = where_of("tokenizer_config.json") + ": added_tokens_decoder";
  std::map<int32_t, AddedToken> tokens;
  const Json decoder = json_get_or<Json>(config_, "added_tokens_decoder", Json::object(), where);
  require(decoder.is_object(), "{} is not an object", where);
  for (const auto& [key, entry] : decoder.items()) {
    require(!key.empty() && key.size() <= 9 &&
                std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; }),
            "{}: the key \"{}\" is not an id", where, key.substr(0, 80));
    AddedToken token;
    token.id = std::stoi(key);
    token.content = json_get<std::string>(entry, "content", where);
    token.special = json_get_or(entry, "special", false, where);
    token.single_word = json_get_or(entry, "single_word", false, where);
    token.lstrip = json_get_or(entry, "lstrip", false, where);
    token.rstrip = json_get_or(entry, "rstrip", false, where);
    token.normalized = json_get_or(entry, "normalized", !token.special, where);
    tokens.emplace(token.id, std::move(token));
  }
  const std::string added_where = where_of("added_tokens.json");
  for (const auto& [text, id] : added_.items()) {
    require(id.is_number_integer() && id >= 0 && id < (1 << 30), "{}: the id of \"{}\" is not a token id",
            added_where, text.substr(0, 80));
    AddedToken token;
    token.id = id.get<int32_t>();
    token.content = text;
    tokens.emplace(token.id, std::move(token));
  }
  for (auto& [id, token] : tokens)
    if (!token.content.empty()) add_token(definition, std::move(token), where);
}

// Tokens that the configuration names in a role are special even where the vocabulary does not mark them.
void TokenizerSettings::mark_special(TokenizerDefinition& definition) const {
  std::vector<std::string> names;
  for (const Json* source : {&config_, &special_map_}) {
    const std::string where =
        where_of(source == &config_ ? "tokenizer_config.json" : "special_tokens_map.json");
    for (const char* role : {"bos_token", "eos_token", "unk_token", "pad_token"})
      if (source->contains(role))
        if (auto name = content_of(source->at(role), where + ": " + role)) names.push_back(*std::move(name));
    constexpr const char* kMore = "additional_special_tokens";
    if (!source->contains(kMore) || source->at(kMore).is_null()) continue;
    require(source->at(kMore).is_array(), "{}: {} must be a list", where, kMore);
    for (const Json& entry : source->at(kMore))
      if (auto name = content_of(entry, where + ": " + kMore)) names.push_back(*std::move(name));
  }
  for (const std::string& name : names) {
    const auto id = find_token(definition, name);
    if (!id) continue;
    if (AddedToken* token = find_added(definition, *id)) {
      token->special = true;
    } else {
      AddedToken token_new;
      token_new.id = *id;
      token_new.content = name;
      token_new.special = true;
      definition.added.push_back(std::move(token_new));
    }
  }
}

void TokenizerSettings::set_bos_and_eos(TokenizerDefinition& definition) const {
  const auto named = [&](const char* role) -> std::optional<int32_t> {
    for (const Json* source : {&config_, &special_map_}) {
      if (!source->contains(role)) continue;
      const auto name = content_of(source->at(role), role);
      return name ? find_token(definition, *name) : std::nullopt;
    }
    return std::nullopt;
  };
  if (definition.bos < 0 && !definition.prefix.empty()) definition.bos = definition.prefix.front();
  if (const auto bos = named("bos_token")) definition.bos = *bos;
  if (const auto eos = named("eos_token")) definition.eos = {*eos};

  // PreTrainedTokenizerFast follows its post-processor alone; the model-specific classes rebuild it from
  // these keys.
  if (tokenizer_class() != "PreTrainedTokenizerFast") {
    const auto rule = [&](const char* key, int32_t id, std::vector<int32_t>& ids) {
      if (!config_.contains(key) || config_.at(key).is_null()) return;
      const bool add = json_get<bool>(config_, key, where_of("tokenizer_config.json"));
      if (id < 0) return;
      ids.clear();
      if (add) ids = {id};
    };
    rule("add_bos_token", definition.bos, definition.prefix);
    rule("add_eos_token", definition.eos.empty() ? -1 : definition.eos.front(), definition.suffix);
  }

  const bool generation = generation_.contains("eos_token_id");
  const Json& source = generation ? generation_ : model_config_;
  if (!source.contains("eos_token_id") || source.at("eos_token_id").is_null()) return;
  const Json& ids = source.at("eos_token_id");
  const std::string where =
      where_of(generation ? "generation_config.json" : "config.json") + ": eos_token_id";
  for (const int64_t id : json_whole_numbers<int64_t>(ids.is_array() ? ids : Json::array({ids}), where)) {
    // Configs of other vocabulary sizes lie about; an id that is no token ends nothing.
    if (id < 0 || id >= definition.size()) continue;
    const auto value = static_cast<int32_t>(id);
    if (std::find(definition.eos.begin(), definition.eos.end(), value) == definition.eos.end())
      definition.eos.push_back(value);
  }
}

std::string TokenizerSettings::chat_template() const {
  if (const auto path = find_tokenizer_file(directory_, "chat_template.jinja")) return read_file(*path);
  const Json separate = read_object(directory_, "chat_template.json");
  const bool apart = separate.contains("chat_template");
  const Json& source = apart ? separate : config_;
  if (!source.contains("chat_template") || source.at("chat_template").is_null()) return {};
  const Json& value = source.at("chat_template");
  if (value.is_string()) return value.get<std::string>();
  const std::string where =
      where_of(apart ? "chat_template.json" : "tokenizer_config.json") + ": chat_template";
  require(value.is_array(), "{} is neither a text nor a list of named ones", where);
  std::string first;
  for (const Json& entry : value) {
    const auto text = json_get<std::string>(entry, "template", where);
    if (json_get<std::string>(entry, "name", where) == "default") return text;
    if (first.empty()) first = text;
  }
  return first;
}

}  // namespace quatrain
