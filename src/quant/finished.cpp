#include "quant/finished.h"

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/artifact.h"
#include "quant/journal.h"
#include "quant/refine/staged.h"

namespace quatrain {

std::optional<Json> finished_before(const fs::path& output, const Checkpoint& original,
                                    const Recipe& recipe) {
  if (!is_artifact(output)) return {};
  const fs::path report_file = output / "quantization_report.json", recipe_file = output / "recipe.toml";
  if (!fs::exists(report_file) || !fs::exists(recipe_file)) return {};
  Json report = parse_json(read_file(report_file), report_file.string());
  if (!report.is_object() || read_file(recipe_file) != recipe.to_toml() ||
      report.value(Json::json_pointer("/source/fingerprint"), "") != original.fingerprint())
    return {};
  try {
    const ArtifactReader reader(output);
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
