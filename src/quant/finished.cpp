#include "quant/finished.h"

#include "base/error.h"
#include "base/first_difference.h"
#include "base/log.h"
#include "checkpoint/artifact.h"
#include "model/text_files.h"
#include "quant/journal.h"
#include "quant/refine/staged.h"

namespace quatrain {
namespace {

void require_same(const fs::path& output, const Json& report, const std::string& its_recipe,
                  const Checkpoint& original, const Recipe& recipe) {
  const auto [was, is] = first_difference(its_recipe, recipe.to_toml());
  require(was == is,
          "{}: is the finished artifact of another recipe: it has \"{}\", this run \"{}\"; choose another "
          "output or remove it",
          output.string(), was, is);
  const std::string its_source =
      report.is_object() ? report.value(Json::json_pointer("/source/fingerprint"), "") : "";
  require(its_source == original.fingerprint(),
          "{}: is the finished artifact of another model than {}; choose another output or remove it",
          output.string(), original.path().string());
}

}  // namespace

std::optional<Json> finished_before(const fs::path& output, const Checkpoint& original,
                                    const Recipe& recipe) {
  if (!is_artifact(output)) return {};
  const fs::path report_file = output / "quantization_report.json", recipe_file = output / "recipe.toml";
  if (!fs::exists(report_file) || !fs::exists(recipe_file)) return {};
  Json report = parse_json(read_file(report_file), report_file.string());
  require_same(output, report, read_file(recipe_file), original, recipe);
  try {
    const ArtifactReader reader(output);
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
