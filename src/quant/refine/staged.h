// Where the artifact that refinement starts from lies while a run with refinement goes on.
#pragma once

#include "base/file.h"
#include "model/checkpoint.h"
#include "quant/recipe.h"

namespace quatrain {

/// OUTPUT.unrefined: a directory of its own, so that a run that is killed or fails while it refines keeps
/// what it has.
class UnrefinedArtifact {
 public:
  /// Checks that `output` may be written. What an earlier run left is an error without `resume`; with it, one
  /// of another model or recipe is.
  UnrefinedArtifact(const fs::path& output, const Checkpoint& original, const Recipe& recipe, bool resume);

  static fs::path path_of(const fs::path& output) { return fs::path(output) += ".unrefined"; }
  const fs::path& path() const { return path_; }
  /// Whether an earlier run has finished it.
  bool finished() const { return finished_; }
  /// The output is in place: removes the artifact, and its journal where a kill left that.
  void remove() const { remove(path_); }
  static void remove(const fs::path& path);

 private:
  fs::path path_;
  bool finished_ = false;
};

}  // namespace quatrain
