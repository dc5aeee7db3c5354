// The frame of a page that stands alone: one file, no script, no request, light and dark, wide and narrow.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quatrain {

/// Text as it may stand in an element or in a quoted attribute; control characters other than white space and
/// invalid UTF-8 become U+FFFD.
std::string escape_html(std::string_view text);

/// A whole document around `body`, which is HTML already; the title is text.
std::string html_page(std::string_view title, std::string_view body);

/// A table that scrolls sideways where the window is narrow. Cells are text; the first column is a heading,
/// the others stand right.
std::string html_table(const std::vector<std::string>& heading,
                       const std::vector<std::vector<std::string>>& rows);

}  // namespace quatrain
