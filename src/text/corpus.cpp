#include "text/corpus.h"

#include <map>

#include "base/error.h"
#include "base/sha256.h"

namespace quatrain {
namespace {

const std::map<std::string, std::string>& shipped_texts() {
  static const std::map<std::string, std::string> texts = {
      {"wikitext2-test", "data/wikitext2/test.raw.gz"},
      {"wikitext2-valid", "data/wikitext2/valid.raw.gz"},
      {"wikitext2-train", "data/wikitext2/train-slice.raw.gz"},
  };
  return texts;
}

fs::path resolve(const std::string& name_or_file) {
  const auto shipped = shipped_texts().find(name_or_file);
  if (shipped != shipped_texts().end()) return find_shipped(shipped->second);
  std::error_code error;
  if (fs::exists(name_or_file, error)) return name_or_file;
  std::string names;
  for (const auto& [name, path] : shipped_texts()) names += " " + name;
  fail("{}: no such file, and not the name of a text that ships with the program:{}", name_or_file, names);
}

}  // namespace

Corpus load_corpus(const std::string& name_or_file) {
  Corpus corpus{name_or_file, read_file(resolve(name_or_file)), ""};
  require(!corpus.text.empty(), "{}: the text is empty", name_or_file);
  corpus.sha256 = sha256_hex(corpus.text);
  return corpus;
}

}  // namespace quatrain
