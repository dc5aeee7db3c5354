// Runs that ended, or were killed behind their last step.
#pragma once

#include <optional>

#include "base/json.h"
#include "model/checkpoint.h"
#include "quant/recipe.h"

namespace quatrain {

/// The report of `output` where it is already the artifact of this model and recipe: nothing is left to do
/// for a run that resumes. What a kill left beside it (journal, unrefined artifact) is removed. Errors: it is
/// the artifact of another model or recipe, or its shards or its tokenizer are missing or truncated.
std::optional<Json> finished_before(const fs::path& output, const Checkpoint& original, const Recipe& recipe);

}  // namespace quatrain
