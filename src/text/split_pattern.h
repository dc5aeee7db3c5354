// The "pattern" objects of a tokenizer.json: {"String": literal} or {"Regex": expression}.
#pragma once

#include <string>

#include "base/json.h"
#include "text/regex.h"

namespace quatrain {

Regex split_pattern(const Json& pattern, const std::string& where);

}  // namespace quatrain
