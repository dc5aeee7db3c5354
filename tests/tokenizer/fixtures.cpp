#include "tokenizer/fixtures.h"

#include <unistd.h>

#include <random>
#include <sstream>

#include "checkpoint/gguf.h"
#include "text/utf8.h"

namespace quatrain {

GgufVocabulary gguf_vocabulary(const fs::path& path) {
  const GgufFile file(path);
  GgufVocabulary vocabulary;
  vocabulary.where = path.filename().string();
  vocabulary.model = file.get<std::string>("tokenizer.ggml.model");
  vocabulary.pre_tokenizer = file.get_or<std::string>("tokenizer.ggml.pre", "");
  vocabulary.tokens = file.get<std::vector<std::string>>("tokenizer.ggml.tokens");
  for (const double score : file.get_or<std::vector<double>>("tokenizer.ggml.scores", {}))
    vocabulary.scores.push_back(static_cast<float>(score));
  for (const int64_t type : file.get_or<std::vector<int64_t>>("tokenizer.ggml.token_type", {}))
    vocabulary.types.push_back(static_cast<int32_t>(type));
  vocabulary.merges = file.get_or<std::vector<std::string>>("tokenizer.ggml.merges", {});
  vocabulary.bos = file.get_or<int64_t>("tokenizer.ggml.bos_token_id", -1);
  vocabulary.eos = file.get_or<int64_t>("tokenizer.ggml.eos_token_id", -1);
  vocabulary.unknown = file.get_or<int64_t>("tokenizer.ggml.unknown_token_id", -1);
  const auto flag = [&](const char* key) {
    return file.find_metadata(key) == nullptr ? std::nullopt : std::optional(file.get<bool>(key));
  };
  vocabulary.add_bos = flag("tokenizer.ggml.add_bos_token");
  vocabulary.add_eos = flag("tokenizer.ggml.add_eos_token");
  vocabulary.add_space_prefix = flag("tokenizer.ggml.add_space_prefix");
  vocabulary.chat_template = file.get_or<std::string>("tokenizer.chat_template", "");
  return vocabulary;
}

std::vector<TextAndIds> llama_cpp_cases(const fs::path& shared, const std::string& name) {
  const fs::path base = shared / "data/tokenizers/llama.cpp" / ("ggml-vocab-" + name + ".gguf");
  const std::string separator = "\n__ggml_vocab_test__\n";
  const std::string texts = read_file(base.string() + ".inp");
  std::istringstream lines(read_file(base.string() + ".out"));
  std::vector<TextAndIds> cases;
  size_t at = 0;
  for (std::string line; at < texts.size() && std::getline(lines, line);) {
    const size_t end = std::min(texts.find(separator, at), texts.size());
    std::istringstream ids(line);
    TextAndIds entry{texts.substr(at, end - at), {}};
    for (int32_t id; ids >> id;) entry.ids.push_back(id);
    at = end + separator.size();
    cases.push_back(std::move(entry));
  }
  return cases;
}

TemporaryDirectory::TemporaryDirectory() {
  static int number = 0;
  path_ = fs::temp_directory_path() /
          ("quatrain-tokenizer-" + std::to_string(getpid()) + "-" + std::to_string(number++));
  fs::create_directories(path_);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code error;
  fs::remove_all(path_, error);
}

fs::path TemporaryDirectory::file(const std::string& name, std::string_view text) const {
  write_file(path_ / name, text);
  return path_ / name;
}

std::unique_ptr<Tokenizer> load_json(const Json& document) {
  const TemporaryDirectory directory;
  return load_tokenizer(directory.file("tokenizer.json", document.dump()));
}

std::vector<std::string> odd_texts(uint64_t seed, int count) {
  static const std::vector<std::string> parts = {
      " ",      "  ",     "   ",      "\t",     "\n",      "\n\n",
      "\r\n",   "a",      "Hello",    " world", "'s",      "'LL",
      "don't",  "1",      "23",       "456789", ".",       "...",
      ",",      "!?",     "(",        "é",      "e\u0301", "Ω",
      "日本語", "한국어", "ไทย",      "हिन्दी",  "🦙",    "👩‍👩‍👧‍👦",
      "\u00A0", "\u2003", "½",        "Ⅷ",      "ﬁ",       "ß",
      "ſ",      "_",      "__init__", "<",      ">",       "</s>",
      "<0x0A>", "\u2581", "\u0000",   "𝒳"};
  std::mt19937_64 random(seed);
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    std::string text;
    for (uint64_t length = random() % 40; length > 0; --length) {
      if (random() % 8 == 0) {
        // Any character but a surrogate.
        int32_t code = static_cast<int32_t>(random() % 0x110000);
        if (code >= 0xD800 && code < 0xE000) code -= 0x800;
        append_utf8(text, code);
      } else {
        text += parts[random() % parts.size()];
      }
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace quatrain
