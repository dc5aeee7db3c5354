#include "text/tokenizer_files.h"

#include "text/pipeline_tokenizer.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_settings.h"

namespace quatrain {

void copy_tokenizer_files(const fs::path& from_directory, const fs::path& to_directory) {
  static constexpr const char* kVocabularies[] = {"tokenizer.json", "tokenizer.model",
                                                  "spiece.model",   "sentencepiece.bpe.model",
                                                  "vocab.json",     "tokenizer.bin"};
  static constexpr const char* kOthers[] = {
      "merges.txt",          "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
      "chat_template.jinja", "chat_template.json",    "generation_config.json"};
  const auto copy = [&](const char* name) {
    const auto path = find_tokenizer_file(from_directory, name);
    if (path) write_file(to_directory / name, read_file(*path));
    return path.has_value();
  };
  int copied = 0;
  for (const char* name : kVocabularies) copied += copy(name);
  require(copied > 0, "{}: no tokenizer files to copy", from_directory.string());
  for (const char* name : kOthers) copy(name);
}

void save_tokenizer_json(const Tokenizer& tokenizer, const fs::path& directory) {
  const auto* pipeline = dynamic_cast<const PipelineTokenizer*>(&tokenizer);
  require(pipeline != nullptr, "{}: this kind of tokenizer cannot be written", directory.string());
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},  // follows tokenizer.json's post-processor
                 {"clean_up_tokenization_spaces", false},
                 {"add_bos_token", tokenizer.adds_bos()},
                 {"add_eos_token", tokenizer.adds_eos()}};
  if (tokenizer.bos() >= 0) config["bos_token"] = tokenizer.token_text(tokenizer.bos());
  if (!tokenizer.eos().empty()) config["eos_token"] = tokenizer.token_text(tokenizer.eos().front());
  const std::string& chat_template = tokenizer.chat_template();
  if (!chat_template.empty()) config["chat_template"] = chat_template;
  write_file(directory / "tokenizer.json", write_tokenizer_json(*pipeline));
  write_file(directory / "tokenizer_config.json", config.dump(2) + "\n");
  if (!chat_template.empty()) write_file(directory / "chat_template.jinja", chat_template);
}

}  // namespace quatrain
