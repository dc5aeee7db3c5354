// The comparison as one HTML file: the table, plots, settings and checksums.
#pragma once

#include <string>

#include "eval/report/comparison.h"

namespace quatrain {

std::string comparison_page(const Comparison& comparison);

}  // namespace quatrain
