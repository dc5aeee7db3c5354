// An artifact with other weight scales.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace quatrain {

/// Writes `output`: every tensor and file of the artifact `source`, with the scales of the linears in
/// `scales`
/// ([out, groups] row-major) another recipe and report.
void rewrite_scales(const fs::path& source, const std::map<std::string, std::vector<float>>& scales,
                    std::string_view recipe_toml, const Json& report, const fs::path& output);

}  // namespace quatrain
