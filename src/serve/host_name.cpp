#include "serve/host_name.h"

#include <arpa/inet.h>

#include <algorithm>

namespace quatrain {
namespace {

// "Example.org.:8080" -> "example.org", "[::1]:8080" -> "::1"
std::string name_of(std::string_view header) {
  if (header.starts_with('[')) {
    header = header.substr(1, header.find(']') - 1);
  } else if (std::count(header.begin(), header.end(), ':') == 1) {
    header = header.substr(0, header.find(':'));
  }
  if (header.ends_with('.')) header.remove_suffix(1);
  std::string name(header);
  for (char& letter : name)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return name;
}

bool is_address(const std::string& name) {
  in6_addr bytes;
  return inet_pton(AF_INET, name.c_str(), &bytes) == 1 || inet_pton(AF_INET6, name.c_str(), &bytes) == 1;
}

}  // namespace

bool is_own_host(std::string_view header, std::string_view bound, const std::vector<std::string>& allowed) {
  const std::string name = name_of(header);
  if (is_address(name) || name == "localhost" || name.ends_with(".localhost") || name == name_of(bound))
    return true;
  return std::any_of(allowed.begin(), allowed.end(),
                     [&](const std::string& one) { return one == "*" || name_of(one) == name; });
}

}  // namespace quatrain
