#include "model/text_files.h"

#include <memory>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "model/checkpoint.h"
#include "text/tokenizer_files.h"

namespace quatrain {
namespace {

void write_generation_config(const fs::path& model, const ModelConfig& config, const fs::path& file) {
  const fs::path own = model / "generation_config.json";
  if (fs::is_directory(model) && fs::exists(own)) {
    write_file(file, read_json(own).dump(2) + "\n");
    return;
  }
  Json json = {{"_from_model_config", true}};
  if (config.bos >= 0) json["bos_token_id"] = config.bos;
  if (config.pad >= 0) json["pad_token_id"] = config.pad;
  if (config.eos.size() == 1) json["eos_token_id"] = config.eos[0];
  if (config.eos.size() > 1) json["eos_token_id"] = config.eos;
  write_file(file, json.dump(2) + "\n");
}

}  // namespace

std::unique_ptr<Tokenizer> find_tokenizer(const fs::path& model) {
  try {
    return load_model_tokenizer(model);
  } catch (const Error& error) {
    log_warn("{}: written without a tokenizer: {}", model.filename().string(), error.what());
    return nullptr;
  }
}

void write_text_files(const fs::path& model, const ModelConfig& config, const fs::path& directory) {
  if (const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(model)) {
    if (fs::is_directory(model))
      copy_tokenizer_files(model, directory);
    else
      save_tokenizer_json(*tokenizer, directory);
    const fs::path chat_template = directory / "chat_template.jinja";
    if (!tokenizer->chat_template().empty() && !fs::exists(chat_template))
      write_file(chat_template, tokenizer->chat_template());
  }
  const fs::path generation = directory / "generation_config.json";
  if (!fs::exists(generation)) write_generation_config(model, config, generation);
}

}  // namespace quatrain
