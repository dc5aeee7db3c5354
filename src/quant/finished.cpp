#include "quant/finished.h"

#include <vector>

#include "base/error.h"
#include "base/first_difference.h"
#include "base/log.h"
#include "checkpoint/artifact.h"
#include "model/text_files.h"
#include "quant/journal.h"
#include "quant/refine/staged.h"

namespace quatrain {
namespace {

// What finish_artifact() wrote, and the index.
void require_files(const fs::path& output, const Json& report) {
  std::vector<std::string> files = {"model.safetensors.index.json"};
  for (const Json& file : report.value("files", Json::array())) files.push_back(file);
  for (const std::string& file : files)
    require(fs::exists(output / file), "{}: is missing", (output / file).string());
}

}  // namespace

Json require_made_of(const fs::path& artifact, std::string_view what, const Checkpoint& original,
                     const Recipe& recipe) {
  const fs::path report_file = artifact / "quantization_report.json";
  const auto [was, is] = first_difference(read_file(artifact / "recipe.toml"), recipe.to_toml());
  require(was == is,
          "{}: is {} of another recipe: it has \"{}\", this run \"{}\"; choose another output or remove it",
          artifact.string(), what, was, is);
  Json report = parse_json(read_file(report_file), report_file.string());
  const std::string its_source =
      report.is_object() ? report.value(Json::json_pointer("/source/fingerprint"), "") : "";
  require(its_source == original.fingerprint(),
          "{}: is {} of another model than {}; choose another output or remove it", artifact.string(), what,
          original.path().string());
  return report;
}

std::optional<Json> finished_before(const fs::path& output, const Checkpoint& original,
                                    const Recipe& recipe) {
  if (!is_artifact(output)) return {};
  const fs::path report_file = output / "quantization_report.json", recipe_file = output / "recipe.toml";
  if (!fs::exists(report_file) || !fs::exists(recipe_file)) return {};
  Json report = require_made_of(output, "the finished artifact", original, recipe);
  try {
    const ArtifactReader reader(output);
    require_files(output, report);
    reader.verify();
    if (find_tokenizer(original.path())) load_model_tokenizer(output);
  } catch (const Error& damaged) {
    fail("{}; --resume keeps finished artifacts: remove {} to make it again", damaged.what(),
         output.string());
  }
  Journal::discard(output);
  UnrefinedArtifact::remove(UnrefinedArtifact::path_of(output));
  log_info("{}: finished already", output.string());
  return report;
}

}  // namespace quatrain
