#include "quant/finish.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/log.h"
#include "model/text_files.h"
#include "quant/report_times.h"

namespace quatrain {
namespace {

// What stands there beside shards.
std::vector<std::string> text_files_in(const fs::path& staging) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(staging))
    if (entry.path().extension() != ".safetensors" && entry.path().extension() != ".tmp")
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

Json finish_artifact(ArtifactWriter& writer, const Checkpoint& source, ModelConfig config,
                     const QuantizationConfig& quantization, const Recipe& recipe, int64_t linears,
                     Json report) {
  const std::string summary = fmt::format("quantised {} of {} linear layers",
                                          linears + (quantization.lm_head_bits != 16 ? 1 : 0), linears + 1);
  log_info("{}", summary);
  report["summary"] = summary;
  report["recipe"] = recipe.name;
  report["seed"] = recipe.seed;
  report["source"] = {{"name", source.path().filename().string()},
                      {"architecture", source.config().architecture},
                      {"parameters", parameter_count(source.config())},
                      {"fingerprint", source.fingerprint()}};
  write_text_files(source.path(), config, writer.staging());
  report["files"] = text_files_in(writer.staging());
  config.tied_embeddings = quantization.lm_head_tied;
  writer.finish(config.to_json(), quantization, recipe.to_toml(), without_times(report));
  return report;
}

}  // namespace quatrain
