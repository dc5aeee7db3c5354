// Online input transforms multiplied into weights.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/artifact.h"

namespace quatrain {

/// The weights that do without the transform: of y = (x T) w, w <- T w. `rows` are of `width` weights each.
/// `stored` is the transform's tensor where it has one. An order that does not fit the width, or a kind that
/// is not known, is an error that begins with `site`.
void fold_transform(const Transform& transform, std::span<const float> stored, std::span<float> rows,
                    int64_t width, std::string_view site);

}  // namespace quatrain
