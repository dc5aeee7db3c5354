// The pages of a WikiText file as lm-eval's `wikitext` task sees them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quatrain {

/// Splits a raw WikiText file at its page headings (" = Title = "); a heading begins its page.
/// A text without headings is one page.
std::vector<std::string> wikitext_pages(std::string_view text);

/// Undoes WikiText's spacing (" @-@ " and the like), by the rules of lm-eval's wikitext task.
std::string wikitext_detokenize(std::string_view page);

/// Pieces between runs of Unicode white space, empty ones at the ends included: what word perplexity divides
/// by.
int64_t count_words(std::string_view page);

}  // namespace quatrain
