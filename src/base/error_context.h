// Errors from deep inside that do not know which file they are about.
#pragma once

#include <string_view>
#include <utility>

#include "base/error.h"

namespace quatrain {

/// Returns work(). An Error that leaves it and does not mention `where` (a file, as a rule) begins with it;
/// wrong usage stays as it is.
template <typename Work>
decltype(auto) in_context(std::string_view where, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    if (std::string_view(error.what()).find(where) != std::string_view::npos) throw;
    fail("{}: {}", where, error.what());
  }
}

}  // namespace quatrain
