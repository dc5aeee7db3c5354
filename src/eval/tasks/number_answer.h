// GSM8K's answers: the number that generated text ends in.
#pragma once

#include <string>
#include <string_view>

namespace quatrain {

/// The first "#### NUMBER" of a reply ("strict-match"); "[invalid]" where there is none.
std::string strict_number(std::string_view reply);
/// The last thing in a reply that looks like a number ("flexible-extract"); "[invalid]" where there is none.
std::string flexible_number(std::string_view reply);
/// Whether an extracted number equals the one at the end of the reference answer: both without commas, dollar
/// signs, what stands before "#### " and a full stop at the end, in any case.
bool same_number(std::string_view extracted, std::string_view reference);

}  // namespace quatrain
