// Vocabularies and expected ids that the tokenizer tests share.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"

namespace quatrain {

/// The vocabulary of a GGUF file, as text/ takes it.
GgufVocabulary gguf_vocabulary(const fs::path& path);

/// llama.cpp's vocabulary tests: NAME.gguf.inp holds texts, NAME.gguf.out a line of ids for each.
struct TextAndIds {
  std::string text;
  std::vector<int32_t> ids;
};
std::vector<TextAndIds> llama_cpp_cases(const fs::path& shared, const std::string& name);

/// A directory that is removed with its content.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const fs::path& path() const { return path_; }
  /// Writes `name` in it and returns its path.
  fs::path file(const std::string& name, std::string_view text) const;

 private:
  fs::path path_;
};

/// A tokenizer.json in a directory of its own, loaded.
std::unique_ptr<Tokenizer> load_json(const Json& document);

/// Texts with every kind of trouble: runs of spaces, all line ends, digits, combining marks, scripts, emoji.
std::vector<std::string> odd_texts(uint64_t seed, int count);

}  // namespace quatrain
