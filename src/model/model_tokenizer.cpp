// The tokenizer that belongs to a model, whatever format the model came in.
#include <algorithm>

#include "base/error.h"
#include "checkpoint/gguf.h"
#include "model/checkpoint.h"

namespace quatrain {
namespace {

std::optional<bool> optional_flag(const GgufFile& file, std::string_view key) {
  if (file.find_metadata(key) == nullptr) return std::nullopt;
  return file.get<bool>(key);
}

GgufVocabulary read_vocabulary(const fs::path& path) {
  const GgufFile file(path);
  require(file.find_metadata("tokenizer.ggml.tokens") != nullptr,
          "{}: the file has no vocabulary (tokenizer.ggml.tokens)", path.string());
  GgufVocabulary vocabulary;
  vocabulary.where = path.string();
  vocabulary.model = file.get<std::string>("tokenizer.ggml.model");
  vocabulary.pre_tokenizer = file.get_or<std::string>("tokenizer.ggml.pre", "");
  vocabulary.tokens = file.get<std::vector<std::string>>("tokenizer.ggml.tokens");
  for (const double score : file.get_or<std::vector<double>>("tokenizer.ggml.scores", {}))
    vocabulary.scores.push_back(static_cast<float>(score));
  for (const int64_t type : file.get_or<std::vector<int64_t>>("tokenizer.ggml.token_type", {}))
    vocabulary.types.push_back(static_cast<int32_t>(std::clamp<int64_t>(type, 0, 255)));
  vocabulary.merges = file.get_or<std::vector<std::string>>("tokenizer.ggml.merges", {});
  vocabulary.bos = file.get_or<int64_t>("tokenizer.ggml.bos_token_id", -1);
  vocabulary.eos = file.get_or<int64_t>("tokenizer.ggml.eos_token_id", -1);
  vocabulary.unknown = file.get_or<int64_t>("tokenizer.ggml.unknown_token_id", -1);
  vocabulary.pad = file.get_or<int64_t>("tokenizer.ggml.padding_token_id", -1);
  vocabulary.add_bos = optional_flag(file, "tokenizer.ggml.add_bos_token");
  vocabulary.add_eos = optional_flag(file, "tokenizer.ggml.add_eos_token");
  vocabulary.add_space_prefix = optional_flag(file, "tokenizer.ggml.add_space_prefix");
  vocabulary.chat_template = file.get_or<std::string>("tokenizer.chat_template", "");
  return vocabulary;
}

// llama2.c keeps its tokenizer in a file of its own: tokenizer.bin, tok512.bin, tok105.model, ...
fs::path tokenizer_beside(const fs::path& model) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(model.parent_path().empty() ? "." : model.parent_path())) {
    const std::string name = entry.path().filename().string(), extension = entry.path().extension().string();
    const bool known = extension == ".bin" || extension == ".model" || name == "tokenizer.json";
    if (known && name.starts_with("tok") && entry.path().filename() != model.filename())
      found.push_back(entry.path());
  }
  require(!found.empty(), "{}: no tokenizer beside it (tok*.bin, tok*.model or tokenizer.json)",
          model.string());
  // .bin before .json before .model: the format's own file has the scores that its program uses.
  return *std::ranges::min_element(
      found, {}, [](const fs::path& path) { return std::pair(path.extension(), path.filename()); });
}

}  // namespace

std::unique_ptr<Tokenizer> load_model_tokenizer(const fs::path& model) {
  require(fs::exists(model), "{}: no such model", model.string());
  if (fs::is_directory(model)) return load_tokenizer(model);
  if (model.extension() == ".gguf") return load_tokenizer(read_vocabulary(model));
  if (model.extension() == ".bin") return load_tokenizer(tokenizer_beside(model));
  return load_tokenizer(model);
}

}  // namespace quatrain
