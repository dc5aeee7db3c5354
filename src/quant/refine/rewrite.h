// An artifact with other weight scales and norms.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace quatrain {

/// What was trained, by linear (scales [out, groups], row-major) and by tensor (norms).
struct RefinedValues {
  std::map<std::string, std::vector<float>> scales, norms;
};

/// Writes `output`: every tensor and file of the artifact `source`, but with `refined` in place of what it
/// has, another recipe and report.
void rewrite(const fs::path& source, const RefinedValues& refined, std::string_view recipe_toml,
             const Json& report, const fs::path& output);

}  // namespace quatrain
