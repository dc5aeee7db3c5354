#include "quant/refine/staged.h"

#include "base/error.h"
#include "checkpoint/artifact.h"
#include "quant/finished.h"
#include "quant/journal.h"

namespace quatrain {

UnrefinedArtifact::UnrefinedArtifact(const fs::path& output, const Checkpoint& original, const Recipe& recipe,
                                     bool resume)
    : path_(path_of(output)) {
  { const ArtifactWriter may_be_written(output); }
  if (!fs::exists(path_)) return;
  require(resume,
          "{}: left by a run that did not finish its refinement; continue it with --resume, or remove it",
          path_.string());
  require(is_artifact(path_), "{}: not an artifact; remove it", path_.string());
  require_made_of(path_, "an unrefined artifact", original, recipe);
  finished_ = true;
}

void UnrefinedArtifact::remove(const fs::path& path) {
  Journal::discard(path);
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

}  // namespace quatrain
