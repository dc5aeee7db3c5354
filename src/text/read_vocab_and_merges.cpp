#include <fmt/format.h>

#include "text/byte_level_scheme.h"
#include "text/tokenizer_json.h"
#include "text/vocabulary_files.h"

namespace quatrain {
namespace {

std::string scheme_of_class(std::string_view name, const std::string& where) {
  if (name.ends_with("Fast")) name.remove_suffix(4);
  if (name.empty() || name == "GPT2Tokenizer" || name == "CodeGenTokenizer") return "gpt-2";
  if (name == "Qwen2Tokenizer") return "qwen2";
  if (name == "RobertaTokenizer" || name == "BartTokenizer") return "roberta-bpe";
  fail(
      "{}: how a {} cuts words is not known; known are GPT2Tokenizer, CodeGenTokenizer, Qwen2Tokenizer, "
      "RobertaTokenizer and BartTokenizer. A tokenizer.json says it",
      where, name);
}

}  // namespace

TokenizerDefinition parse_vocab_and_merges(std::string_view vocab, std::string_view merges,
                                           const std::string& tokenizer_class, const std::string& where) {
  const ByteLevelScheme scheme = byte_level_scheme(scheme_of_class(tokenizer_class, where), where);
  Json model = {{"type", "BPE"}, {"vocab", parse_json(vocab, where)}};
  Json& list = model["merges"] = Json::array();
  size_t number = 0;
  while (!merges.empty()) {
    const size_t end = merges.find('\n');
    std::string_view line = merges.substr(0, end);
    merges.remove_prefix(end == std::string_view::npos ? merges.size() : end + 1);
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    list.push_back(std::string(line));
  }
  TokenizerDefinition definition = read_tokenizer_json({{"model", std::move(model)},
                                                        {"normalizer", scheme.normalizer},
                                                        {"pre_tokenizer", scheme.pre_tokenizer},
                                                        {"decoder", {{"type", "ByteLevel"}}}},
                                                       where);
  // RoBERTa puts <s> and </s> around every text.
  for (size_t id = 0; id < definition.tokens.size() && scheme.add_bos; ++id) {
    if (definition.tokens[id] == "<s>") definition.prefix = {definition.bos = static_cast<int32_t>(id)};
    if (definition.tokens[id] == "</s>") definition.eos = definition.suffix = {static_cast<int32_t>(id)};
  }
  return definition;
}

}  // namespace quatrain
