// Unicode normalisation forms and case (UAX 15; tables of utf8proc).
#pragma once

#include <string>
#include <string_view>

namespace quatrain {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

/// `text` must be valid UTF-8.
std::string normal_form(std::string_view text, NormalForm form);
/// Simple lower case of every character.
std::string lower_case(std::string_view text);
/// Without marks (general category M).
std::string strip_accents(std::string_view text);

}  // namespace quatrain
