// Which names a server answers to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quatrain {

/// Whether a Host header names this server: an IP address, localhost, `bound` (what it listens on), or one of
/// `allowed`
/// ("*": any). Ports do not count. Any other name may be that of a site whose owner lets it point here to
/// make the visitor's browser take this server for the site's own (DNS rebinding).
bool is_own_host(std::string_view header, std::string_view bound, const std::vector<std::string>& allowed);

}  // namespace quatrain
