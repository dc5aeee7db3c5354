#include "text/pipeline_tokenizer.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_settings.h"
#include "text/vocabulary_files.h"

namespace quatrain {
namespace {

TokenizerDefinition read_vocab_and_merges(const fs::path& vocab, const fs::path& merges,
                                          const TokenizerSettings& settings) {
  return parse_vocab_and_merges(read_file(vocab), read_file(merges), settings.tokenizer_class(),
                                vocab.string());
}

TokenizerDefinition read_sentencepiece(const fs::path& path, const TokenizerSettings& settings) {
  const std::string bytes = read_file(path);
  // A rank file of tiktoken has the same name: base64 and a number, line by line.
  const size_t line = std::min(bytes.find('\n'), bytes.size());
  const size_t space = bytes.substr(0, line).find(' ');
  require(
      space == std::string::npos || space == 0 ||
          bytes.substr(space + 1, line - space - 1).find_first_not_of("0123456789\r") != std::string::npos,
      "{}: a tiktoken vocabulary is not supported; use the model's tokenizer.json", path.string());
  return parse_sentencepiece_model(bytes, settings.space_only_first(), path.string());
}

TokenizerDefinition read_directory(const fs::path& directory, const TokenizerSettings& settings) {
  const auto file = [&](const char* name) { return find_tokenizer_file(directory, name); };
  if (const auto path = file("tokenizer.json")) return parse_tokenizer_json(read_file(*path), path->string());
  for (const char* name : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model"})
    if (const auto path = file(name)) return read_sentencepiece(*path, settings);
  const auto vocab = file("vocab.json"), merges = file("merges.txt");
  if (vocab && merges) return read_vocab_and_merges(*vocab, *merges, settings);
  if (const auto path = file("tokenizer.bin"))
    return parse_llama2c_vocabulary(read_file(*path), path->string());
  require(!file("tekken.json"), "{}: tekken.json is not supported; the model's tokenizer.json is",
          directory.string());
  require(!file("vocab.txt"),
          "{}: vocab.txt is a WordPiece vocabulary of an encoder model, which is not supported",
          directory.string());
  fail(
      "{}: no tokenizer here (tokenizer.json, tokenizer.model, vocab.json with merges.txt, or tokenizer.bin)",
      directory.string());
}

TokenizerDefinition read_one_file(const fs::path& path, const TokenizerSettings& settings) {
  const std::string name = path.filename().string();
  const auto beside = [&](const char* other) {
    const auto found = find_tokenizer_file(path.parent_path(), other);
    require(found.has_value(), "{}: needs {} beside it", path.string(), other);
    return *found;
  };
  if (name.starts_with("vocab.json")) return read_vocab_and_merges(path, beside("merges.txt"), settings);
  if (name.starts_with("merges.txt")) return read_vocab_and_merges(beside("vocab.json"), path, settings);
  if (name.ends_with(".json") || name.ends_with(".json.gz"))
    return parse_tokenizer_json(read_file(path), path.string());
  if (name.ends_with(".bin")) return parse_llama2c_vocabulary(read_file(path), path.string());
  require(!name.ends_with(".gguf"),
          "{}: the tokenizer of a GGUF file is loaded with the model, not as a file of its own",
          path.string());
  return read_sentencepiece(path, settings);
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& path) {
  std::error_code error;
  const bool directory = fs::is_directory(path, error);
  require(directory || fs::exists(path, error), "{}: no such file or directory", path.string());
  const TokenizerSettings settings(directory ? path : path.parent_path());
  TokenizerDefinition definition = directory ? read_directory(path, settings) : read_one_file(path, settings);
  settings.apply(definition);
  return std::make_unique<PipelineTokenizer>(std::move(definition));
}

}  // namespace quatrain
