// Runs that ended, or were killed behind their last step.
#pragma once

#include <optional>
#include <string_view>

#include "base/json.h"
#include "model/checkpoint.h"
#include "quant/recipe.h"

namespace quatrain {

/// The report of the artifact at `artifact`; an error where it is of another model or recipe than `original`
/// and `recipe`, which names the first difference. `what` it is, for the error: "the finished artifact".
Json require_made_of(const fs::path& artifact, std::string_view what, const Checkpoint& original,
                     const Recipe& recipe);

/// The report of `output` where it is already the artifact of this model and recipe: nothing is left to do
/// for a run that resumes. What a kill left beside it (journal, unrefined artifact) is removed. Errors: it is
/// the artifact of another model or recipe, one of its files is missing, or its tensors are not those that
/// were written.
std::optional<Json> finished_before(const fs::path& output, const Checkpoint& original, const Recipe& recipe);

}  // namespace quatrain
