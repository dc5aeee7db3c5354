// Lookup in the table of one group of filters.
#pragma once

#include <algorithm>
#include <string_view>
#include <utility>

#include "text/jinja/filters.h"

namespace quatrain::jinja {

using FilterEntry = std::pair<std::string_view, Filter>;

template <size_t Count>
Filter find_in(const FilterEntry (&table)[Count], std::string_view name) {
  const auto* found = std::find_if(std::begin(table), std::end(table),
                                   [&](const FilterEntry& entry) { return entry.first == name; });
  return found == std::end(table) ? nullptr : found->second;
}

}  // namespace quatrain::jinja
