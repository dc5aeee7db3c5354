#include "quant/text_files.h"

#include "base/json.h"
#include "base/log.h"

namespace quatrain {
namespace {

void write_generation_config(const fs::path& model, const ModelConfig& config, const fs::path& directory) {
  const fs::path own = model / "generation_config.json";
  if (fs::is_directory(model) && fs::exists(own)) {
    write_file(directory / "generation_config.json", read_json(own).dump(2) + "\n");
    return;
  }
  Json json = {{"_from_model_config", true}};
  if (config.bos >= 0) json["bos_token_id"] = config.bos;
  if (config.pad >= 0) json["pad_token_id"] = config.pad;
  if (config.eos.size() == 1) json["eos_token_id"] = config.eos[0];
  if (config.eos.size() > 1) json["eos_token_id"] = config.eos;
  write_file(directory / "generation_config.json", json.dump(2) + "\n");
}

}  // namespace

void write_text_files(const fs::path& model, const ModelConfig& config, const fs::path& directory) {
  write_generation_config(model, config, directory);
}

}  // namespace quatrain
